"""The choice between the compiled kernels and the Python fallback, by FEDEDGE_OPS and by import."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fededge.errors import ConfigError

__all__ = ["NAMES", "Choice", "Load", "choose"]

NAMES = ("reference", "cpu")
ALLOWED = (*NAMES, "cuda")

Load = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Choice:
    """The implementation for one kind of device, the reason for it, and its build facts."""

    name: str
    reason: str
    build: Mapping[str, Any] | None = None


def choose(environ: Mapping[str, str], load: Load, fallback: str = "pure torch") -> Choice:
    """Choose the implementation for the CPU.

    Args:
        environ: the process's environment variables.
        load: imports the compiled module and returns its build facts, or raises ImportError.
        fallback: name of the implementation that is used if the module does not load.
    """
    wanted = environ.get("FEDEDGE_OPS")
    if wanted is not None and wanted not in ALLOWED:
        raise ConfigError(f"FEDEDGE_OPS is '{wanted}', it must be one of: {', '.join(ALLOWED)}")
    try:
        build = load()
    except ImportError as error:
        return _without_module(environ, wanted, error, fallback)
    if wanted:
        return Choice(
            "reference" if wanted == "reference" else "cpu", f"FEDEDGE_OPS={wanted}", build
        )
    return Choice("cpu", "the compiled module loaded", build)


def _without_module(
    environ: Mapping[str, str], wanted: str | None, error: ImportError, fallback: str
) -> Choice:
    missing = f"the compiled kernels do not load ({type(error).__name__}: {error})"
    remedy = "install with a C++ compiler: pip install --no-build-isolation --no-deps ."
    for name, value in (
        ("FEDEDGE_OPS", "cpu"),
        ("FEDEDGE_OPS", "cuda"),
        ("FEDEDGE_REQUIRE_EXT", "1"),
    ):
        if environ.get(name) == value:
            raise ConfigError(f"{name}={value}, but {missing}; {remedy}") from error
    if wanted == "reference":
        return Choice("reference", "FEDEDGE_OPS=reference")
    warnings.warn(f"{missing}: using {fallback} instead; {remedy}", RuntimeWarning, stacklevel=2)
    return Choice("reference", missing)
