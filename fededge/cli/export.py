"""`fededge export`: the models that a device has exported, and which of them apps get."""

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
from fededge.export import Manifest, Models, Record
from fededge.predictor.manifest import MANIFEST

__all__ = ["add_to"]

TEXT = """\
Say which models a device has exported, and choose which one its apps get. The agent may run
meanwhile: it goes by what is chosen here. A new model replaces the current one only if it is not
worse on the device's held-out data; a pinned one stays until it is unpinned; one that was reported
bad is never used again.

examples:
  fededge export state                       # the models, the current one marked
  fededge export --list                      # of the agent in this folder
  fededge export --list --config agent.toml --json
  fededge export state --rollback            # to the model before the current one
  fededge export state --pin 41              # apps get 41, whatever is trained meanwhile
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
        help="an agent's state folder, or its models folder (default: where you are)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="instead: the agent's TOML file"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="the models and what became of them")
    what.add_argument("--rollback", action="store_true", help="go back to the model before")
    what.add_argument("--pin", type=int, metavar="N", help="make model N current, and keep it so")
    what.add_argument("--unpin", action="store_true", help="let better models take over again")
    what.add_argument(
        "--bad", metavar="REASON", help="the current model is bad: roll back, never use it again"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    models = Models(_folder(_given(options)))
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
        raise ConfigError("which device? Give its state folder, or --config, and not both")
    return Path(load(options.config, AgentConfig).state)


def _folder(given: Path) -> Path:
    """The models of a device, from its state folder or the one around it, theirs, or the link."""
    for folder in (given / "models", given / "state" / "models", given, given.parent):
        if any((folder / str(number) / MANIFEST).exists() for number in Models(folder).numbers()):
            return folder
    raise StoreError(
        f"{given}: there are no exported models here; give an agent's state folder, after its "
        "first training"
    )


def _change(models: Models, options: argparse.Namespace) -> str:
    """Do what is asked; a sentence about it, or nothing if the list is wanted."""
    if options.rollback:
        if models.roll_back("by hand") is None:
            raise StoreError(f"{models.folder}: there is no earlier model to go back to")
        return _now(models)
    if options.pin is not None:
        models.pin(options.pin)
        return f"{_now(models)}, and stays so until --unpin"
    if options.unpin:
        models.unpin()
        return f"{_now(models)}, until a model that is not worse comes"
    if options.bad is not None:
        return _mark(models, options.bad)
    return ""


def _mark(models: Models, reason: str) -> str:
    number = models.number()
    if number is None:
        raise StoreError(f"{models.folder}: no model is current")
    if not reason.strip():
        raise ConfigError("--bad needs a reason: it is kept with the model's history")
    if models.mark_bad(number, reason[:1000]) == number:
        return f"model {number} is bad, but there is no other: it stays current until there is one"
    return f"model {number} is bad and not used again; {_now(models)}"


def _now(models: Models) -> str:
    current = models.current()
    if current is None:
        raise StoreError(f"{models.folder}: no model is current")
    return f"current is model {models.number()}, of round {current.round + 1}"


def _described(models: Models) -> dict[str, Any]:
    record = models.record()
    rows = [_row(number, about, record) for number, about in _manifests(models)]
    return {
        "current": models.number(),
        "pinned": record.pinned,
        "models": rows,
        "history": msgspec.to_builtins(record.history),
    }


def _row(number: int, about: Manifest | StoreError, record: Record) -> dict[str, Any]:
    if isinstance(about, StoreError):
        return {"number": number, "state": "damaged", "error": str(about)}
    state = _state(number, about, record)
    return {"number": number, "state": state, **msgspec.to_builtins(about)}


def _manifests(models: Models) -> Iterator[tuple[int, Manifest | StoreError]]:
    """What is known of each model; of a damaged one, what is wrong with it."""
    for number in models.numbers():
        try:
            yield number, models.manifest(number)
        except StoreError as error:
            yield number, error


def _state(number: int, manifest: Manifest, record: Record) -> str:
    if manifest.weights in record.bad:
        return "bad"
    if record.trail and number == record.trail[-1]:
        return "pinned" if record.pinned == number else "current"
    return "earlier" if number in record.trail else "held"


def _show(models: Models, console: Console) -> None:
    record = models.record()
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
            _state(number, manifest, record),
            str(manifest.round + 1),
            accuracy,
            f"{size:,}",
            manifest.use,
            f"{manifest.created:%Y-%m-%d %H:%M}",
        )
    console.print(table)
    for entry in record.history[-5:]:
        reason = f" ({plain(entry.reason)})" if entry.reason else ""
        which = f"model {entry.number}" if entry.number else "a new model"
        console.print(f"{entry.time:%Y-%m-%d %H:%M:%S}  {which} {entry.event}{reason}")
