"""`fededge export`: list a device's exported models, and choose the one for its apps."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from fededge._internal.plain_text import plain
from fededge.config import AgentConfig, load
from fededge.errors import ConfigError, StoreError
from fededge.export import ModelManifest, ModelRegistry, RegistryIndex
from fededge.predictor.manifest import MANIFEST

__all__ = ["add_to"]

TEXT = """\
List the models that a device has exported, and choose the one that its apps use. The agent may run
meanwhile: it respects the choice. A new model replaces the current one only if it is not worse on
the device's held-out data; a pinned one stays until it is unpinned; one that was reported bad is
never used again.

examples:
  fededge export state                       # the models, the current one marked
  fededge export --list                      # the same for the agent in this folder
  fededge export --list --config agent.toml --json
  fededge export state --rollback            # to the model before the current one
  fededge export state --pin 41              # apps use 41, whatever is trained meanwhile
  fededge export state --unpin
  fededge export state --bad "calls every bus a truck"
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument(
        "state",
        type=Path,
        nargs="?",
        metavar="STATE",
        help="an agent's state folder, or its models folder (default: the current folder)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="instead: the agent's TOML file"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show the models and their history")
    what.add_argument("--rollback", action="store_true", help="go back to the previous model")
    what.add_argument("--pin", type=int, metavar="N", help="make model N current until --unpin")
    what.add_argument("--unpin", action="store_true", help="allow better models again")
    what.add_argument(
        "--bad", metavar="REASON", help="the current model is bad: roll back, never use it again"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    models = ModelRegistry(_folder(_given(options)))
    said = _change(models, options)
    if options.json:
        print(json.dumps(_described(models), indent=1))
    elif said:
        print(said)
    else:
        _show(models, Console(highlight=False, markup=False, emoji=False))


def _given(options: argparse.Namespace) -> Path:
    if options.config is None:
        return options.state or Path()
    if options.state is not None:
        raise ConfigError("give either the device's state folder or --config, not both")
    return Path(load(options.config, AgentConfig).state)


def _folder(given: Path) -> Path:
    """Return a device's models folder, given it, its parents, or the link `current`."""
    for folder in (given / "models", given / "state" / "models", given, given.parent):
        if any(
            (folder / str(number) / MANIFEST).exists() for number in ModelRegistry(folder).numbers()
        ):
            return folder
    raise StoreError(
        f"{given}: there are no exported models here; give an agent's state folder, after its "
        "first training"
    )


def _change(models: ModelRegistry, options: argparse.Namespace) -> str:
    """Make the requested change; return a sentence about it, empty if none is requested."""
    if options.rollback:
        if models.roll_back("by hand") is None:
            raise StoreError(f"{models.folder}: there is no earlier model to go back to")
        return _now(models)
    if options.pin is not None:
        models.pin(options.pin)
        return f"{_now(models)}, until --unpin"
    if options.unpin:
        models.unpin()
        return f"{_now(models)}, until there is one that is not worse"
    if options.bad is not None:
        return _mark(models, options.bad)
    return ""


def _mark(models: ModelRegistry, reason: str) -> str:
    number = models.number()
    if number is None:
        raise StoreError(f"{models.folder}: no model is current")
    if not reason.strip():
        raise ConfigError("--bad needs a reason: it is saved in the model's history")
    if models.mark_bad(number, reason[:1000]) == number:
        return f"model {number} is bad, but there is no other: it stays current until there is one"
    return f"model {number} is bad and not used again; {_now(models)}"


def _now(models: ModelRegistry) -> str:
    current = models.current()
    if current is None:
        raise StoreError(f"{models.folder}: no model is current")
    return f"current is model {models.number()}, of round {current.round + 1}"


def _described(models: ModelRegistry) -> dict[str, Any]:
    index = models.index()
    rows = [_row(number, about, index) for number, about in _manifests(models)]
    return {
        "current": models.number(),
        "pinned": index.pinned,
        "models": rows,
        "history": msgspec.to_builtins(index.history),
    }


def _row(number: int, about: ModelManifest | StoreError, index: RegistryIndex) -> dict[str, Any]:
    if isinstance(about, StoreError):
        return {"number": number, "state": "damaged", "error": str(about)}
    state = _state(number, about, index)
    return {"number": number, "state": state, **msgspec.to_builtins(about)}


def _manifests(models: ModelRegistry) -> Iterator[tuple[int, ModelManifest | StoreError]]:
    """Yield each model's manifest; for a damaged one, its error."""
    for number in models.numbers():
        try:
            yield number, models.manifest(number)
        except StoreError as error:
            yield number, error


def _state(number: int, manifest: ModelManifest, index: RegistryIndex) -> str:
    if manifest.weights in index.bad:
        return "bad"
    if index.trail and number == index.trail[-1]:
        return "pinned" if index.pinned == number else "current"
    return "earlier" if number in index.trail else "held"


def _show(models: ModelRegistry, console: Console) -> None:
    index = models.index()
    table = Table()
    for name in ("model", "state", "round", "accuracy", "bytes", "apps use", "created"):
        table.add_column(name, justify="right" if name in ("model", "round", "bytes") else "left")
    for number, manifest in _manifests(models):
        if isinstance(manifest, StoreError):
            table.add_row(str(number), "damaged")
            continue
        accuracy = "–" if manifest.accuracy is None else f"{manifest.accuracy:.1%}"
        variant = manifest.variants.get(manifest.use)
        size = manifest.size if variant is None else variant.size
        table.add_row(
            str(number),
            _state(number, manifest, index),
            str(manifest.round + 1),
            accuracy,
            f"{size:,}",
            manifest.use,
            f"{manifest.created:%Y-%m-%d %H:%M}",
        )
    console.print(table)
    for entry in index.history[-5:]:
        reason = f" ({plain(entry.reason)})" if entry.reason else ""
        which = f"model {entry.number}" if entry.number else "a new model"
        console.print(f"{entry.time:%Y-%m-%d %H:%M:%S}  {which} {entry.event}{reason}")
