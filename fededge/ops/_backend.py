"""Which implementation runs: chosen once, when `fededge.ops` is imported.

FEDEDGE_OPS=reference or FEDEDGE_OPS=cpu forces one; FEDEDGE_REQUIRE_EXT=1 makes a missing
compiled module an error instead of a warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from fededge.errors import ConfigError
from fededge.ops import reference

__all__ = ["Choice", "choose", "facts", "kernels"]

NAMES = ("reference", "cpu")


@dataclass(frozen=True)
class Choice:
    """The implementation for tensors on the CPU, why it was taken, and how it was built."""

    name: str
    reason: str
    build: Mapping[str, Any] | None = None


def choose(environ: Mapping[str, str], load: Callable[[], Mapping[str, Any]]) -> Choice:
    """Decide by what the environment asks for and by whether the compiled module loads.

    Args:
        environ: the process's environment variables.
        load: imports the compiled module and returns its build facts, or raises ImportError.
    """
    wanted = environ.get("FEDEDGE_OPS")
    if wanted is not None and wanted not in NAMES:
        raise ConfigError(f"FEDEDGE_OPS is '{wanted}', it must be one of: {', '.join(NAMES)}")
    try:
        build = load()
    except ImportError as error:
        return _without_module(environ, wanted, error)
    if wanted:
        return Choice(wanted, f"FEDEDGE_OPS={wanted}", build)
    return Choice("cpu", "the compiled module loaded", build)


def _without_module(environ: Mapping[str, str], wanted: str | None, error: ImportError) -> Choice:
    missing = f"the compiled kernels do not load ({type(error).__name__}: {error})"
    remedy = "install with a C++ compiler: pip install --no-build-isolation ."
    for name, value in (("FEDEDGE_OPS", "cpu"), ("FEDEDGE_REQUIRE_EXT", "1")):
        if environ.get(name) == value:
            raise ConfigError(f"{name}={value}, but {missing}; {remedy}") from error
    if wanted == "reference":
        return Choice("reference", "FEDEDGE_OPS=reference")
    warnings.warn(f"{missing}: pure torch serves instead; {remedy}", RuntimeWarning, stacklevel=2)
    return Choice("reference", missing)


def load_module() -> Mapping[str, Any]:
    """Import the compiled module, which registers `torch.ops.fededge`; return its facts."""
    from fededge._C import facts as build_facts

    build = build_facts()
    built, running = _minor(build["torch"]), _minor(torch.__version__)
    if built != running:
        # torch keeps no binary compatibility between minor versions: it may load and misbehave.
        raise ImportError(f"built for torch {build['torch']}, but torch {torch.__version__} runs")
    return build


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def kernels(device: torch.device) -> ModuleType:
    """The functions that serve tensors on this device."""
    if device.type == "cpu" and CHOICE.name == "cpu":
        compiled: ModuleType = torch.ops.fededge
        return compiled
    return reference


def facts() -> dict[str, Any]:
    """Which implementation runs on the CPU, why, and how the compiled module was built."""
    return {
        "implementation": CHOICE.name,
        "reason": CHOICE.reason,
        "threads": torch.get_num_threads(),
        "build": dict(CHOICE.build) if CHOICE.build is not None else None,
    }


CHOICE = choose(os.environ, load_module)
