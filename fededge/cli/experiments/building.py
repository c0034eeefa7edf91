"""The experiment that flags and files ask for, checked before it runs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fededge import methods, models
from fededge._internal.suggestions import unknown
from fededge.cli.experiments.data_flag import split_source
from fededge.cli.experiments.flags import FLAGS
from fededge.errors import ConfigError, WireError
from fededge.hardware import Hardware, choose
from fededge.simulation.experiment import Experiment
from fededge.simulation.presets import preset
from fededge.storage.files import stream_sha256
from fededge.wire.encoding import Encoding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["check_writable", "converted", "experiment", "settings"]

T = TypeVar("T")


def experiment(
    options: argparse.Namespace, file: Mapping[str, Any] | None = None, **more: Any
) -> Experiment:
    """Return the experiment: a preset, overridden by a file, overridden by flags.

    Args:
        file: the file's settings; read from `options.config` if left out.
    """
    values = preset(options.preset) if options.preset else {}
    values |= settings(options.config) if file is None else file
    names = [name.replace("-", "_") for name, _, _ in FLAGS]
    values |= {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    if options.data is not None:
        values["source"], values["root"] = split_source(options.data)
    values |= {name: value for name, value in more.items() if value is not None}
    made = converted(values, Experiment)
    try:
        Encoding.parse(made.encoding)
    except WireError as error:
        raise ConfigError(str(error)) from None
    method = methods.method(made.method)
    models.check_configured(made.model)
    if models.in_zoo(made.model):  # else it is checked when the network is built
        method.needs(models.probe_network(made.model, made.head))
    if not 1 <= options.workers <= 256:
        raise ConfigError(f"--workers {options.workers}: must be 1 to 256")
    taken = _hardware(made.device, made.threads, made.precision)
    used = {"device": taken.device, "precision": taken.precision.value}
    if made.weights:
        path = Path(made.weights).expanduser().absolute()
        used |= {"weights": str(path), "weights_sha256": _sha256(path)}
    if models.is_reference(made.model):
        used["model_file"] = models.load(made.model).rpartition("@")[2]
    return msgspec.structs.replace(made, method_files=method.files, **used)


@cache
def _sha256(path: Path) -> str:
    """The hash of the file of weights: a result holds for this content, not for its name."""
    try:
        with path.open("rb") as file:
            return stream_sha256(file)
    except OSError as error:
        raise ConfigError(f"--weights {path}: cannot be read ({error.strerror})") from None


@cache
def _hardware(device: str, threads: int, precision: str) -> Hardware:
    """Return the hardware that is used, for the result's settings; refuse what does not work here.

    Cached: a comparison asks for every method and seed, and the choice is logged.
    """
    return choose(device, threads, precision)


def converted(values: Mapping[str, Any], kind: type[T]) -> T:
    """Convert these settings; the error for a wrong one names it."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_mistake(str(error).replace("`", ""), values)) from None


def _mistake(text: str, values: Mapping[str, Any]) -> str:
    """Rephrase `Expected int >= 1 - at $.rounds` as `rounds = 0: expected int >= 1`."""
    what, _, place = text.partition(" - at $.")
    name = place.partition("[")[0]
    subject = f"{name} = {values[name]}" if name in values else "the experiment is invalid"
    return f"{subject}: {what[0].lower()}{what[1:]}"


def check_writable(*paths: Path | None) -> None:
    """Check before a long run that its results can be written."""
    for path in paths:
        folder = None if path is None else path.absolute().parent
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
        if path is not None and path.is_dir():
            raise ConfigError(f"{path}: cannot be written (it is a folder)")


def settings(path: Path | None, *more: str) -> dict[str, Any]:
    """Read a file of settings; empty without a file. Paths in it are relative to it.

    Args:
        more: allowed keys beside those of an experiment.
    """
    if path is None:
        return {}
    values = _read(path)
    known = {*Experiment.__struct_fields__, *more}
    known -= {"method_files", "model_file", "weights_sha256"}
    for key in values.keys() - known:
        raise ConfigError(f"{path}: {unknown('setting', key, known)}")
    if isinstance(values.get("method"), str):
        values["method"] = methods.absolute_paths(values["method"], path.parent)
    if isinstance(values.get("model"), str):
        values["model"] = models.absolute_reference(values["model"], path.parent)
    for key in ("root", "weights"):
        if isinstance(values.get(key), str) and values[key]:
            values[key] = str(path.absolute().parent / Path(values[key]).expanduser())
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    return values
