"""`fededge versions`: list, show, roll back to, pin and export versions of a federation's model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table

from fededge._internal.plain_text import plain

if TYPE_CHECKING:
    from fededge.config import CoordinatorConfig

__all__ = ["add_to"]

TEXT = """\
List the versions of a federation's model with their dates, accuracies and participants, continue
from an earlier one, keep one for good, or export one: as ONNX, or as weights that a new run begins
with. Run it on the coordinator's machine; the coordinator may run or not.

examples:
  fededge versions list --config coordinator.toml
  fededge versions show 000041 --config coordinator.toml --json
  fededge versions rollback 000041 --config coordinator.toml
  fededge versions pin 000041 --config coordinator.toml
  fededge versions export --config coordinator.toml --out model
  fededge versions export 000041 --config coordinator.toml --weights start.safetensors
"""

ACTIONS = {
    "list": "all versions, oldest first",
    "show": "one version with its participants; by default the newest",
    "rollback": "continue from a version; by default the last good one",
    "pin": "never prune a version's model; by default the newest",
    "unpin": "prune it like any other's",
    "export": "write a version as ONNX, compared with torch, or as weights for a new run",
}


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, text in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text)
        if name != "list":
            action.add_argument(
                "version", nargs="?", default="", metavar="VERSION", help="or how it begins"
            )
        if name == "export":
            to = action.add_mutually_exclusive_group(required=True)
            to.add_argument(
                "--out", type=Path, metavar="FOLDER", help="ONNX, in an empty or new folder"
            )
            to.add_argument(
                "--weights",
                type=Path,
                metavar="FILE",
                help="safetensors, for `weights` in the [model] of a new run",
            )
        action.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="the coordinator's TOML file"
        )
        action.add_argument("--json", action="store_true", help="as JSON")
        action.set_defaults(run=run, action=name)


def run(options: argparse.Namespace) -> None:
    from fededge.config import CoordinatorConfig, load

    actions: dict[str, Callable[[CoordinatorConfig, argparse.Namespace], None]] = {
        "list": _list,
        "show": _show,
        "rollback": _roll_back,
        "pin": _pin,
        "unpin": _pin,
        "export": _export,
    }
    actions[options.action](load(options.config, CoordinatorConfig), options)


def _list(config: CoordinatorConfig, options: argparse.Namespace) -> None:
    from fededge_server.model.version_list import list_versions

    entries = list_versions(Path(config.state))
    if options.json:
        _print_json([msgspec.structs.replace(entry, reports={}) for entry in entries])
        return
    table = Table(box=None, padding=(0, 2, 0, 0))  # 80 columns are enough
    for name in ("version", "date", "accuracy", "devices", "seconds", ""):
        words = name in ("version", "date", "")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for entry in entries:
        table.add_row(*_cells(entry), _mark(entry))
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(table)
    for entry in entries:
        for change in entry.changes:
            console.print(f"{entry.version}  {plain(change)}", soft_wrap=True)


def _cells(entry: Any) -> tuple[str, ...]:
    accuracy = "" if entry.accuracy is None else f"{entry.accuracy:.1%}"
    seconds = "" if entry.seconds is None else f"{entry.seconds:.0f}"
    return entry.version, _date(entry), accuracy, str(entry.participants), seconds


def _date(entry: Any) -> str:
    if entry.date is None:
        return "unknown"
    return datetime.fromtimestamp(entry.date).isoformat(" ", "minutes")


def _mark(entry: Any) -> str:
    """One word about the version's files."""
    if not entry.kept:
        return "pruned"
    return "pinned" if entry.pinned else ""


def _show(config: CoordinatorConfig, options: argparse.Namespace) -> None:
    from fededge_server.model.version_list import find

    entry = find(Path(config.state), options.version)
    if options.json:
        _print_json(entry)
        return
    version, date, accuracy, participants, seconds = _cells(entry)
    print(f"{version}, made {date} after {entry.round} rounds, SHA-256 {entry.sha256}")
    if accuracy:
        print(f"accuracy {accuracy}")
    took = f", in {seconds} s" if seconds else ""
    print(f"{participants} participants{took}")
    for device, scalars in sorted(entry.reports.items()):
        print(f"  {plain(device)}: {', '.join(f'{n} {v:.4g}' for n, v in scalars.items())}")
    for change in entry.changes:
        print(plain(change))
    if not entry.kept:
        print("its model was pruned")
    elif entry.pinned:
        print("pinned: its model is kept")


def _roll_back(config: CoordinatorConfig, options: argparse.Namespace) -> None:
    from fededge_server.model import rollback
    from fededge_server.model.version_list import find

    folder = Path(config.state)
    said = rollback.go_back(
        folder, find(folder, options.version).version if options.version else ""
    )
    if options.json:
        _print_json({"said": said})
    else:
        print(said)


def _pin(config: CoordinatorConfig, options: argparse.Namespace) -> None:
    from fededge.cli.fleet.coordinator_client import give
    from fededge_server.machine.fleet.orders import PinOrder, UnpinOrder
    from fededge_server.model.version_list import find

    version = find(Path(config.state), options.version).version
    give(options, PinOrder(version) if options.action == "pin" else UnpinOrder(version))


def _export(config: CoordinatorConfig, options: argparse.Namespace) -> None:
    from fededge.cli.fleet.global_export import export_version, export_weights
    from fededge_server.model.version_list import find
    from fededge_server.store import Store

    folder = Path(config.state)
    entry = find(folder, options.version)
    store = Store(folder)
    path = store.model(entry.version)
    if options.weights is not None:
        export_weights(config, entry, path, options.weights)
        if options.json:
            _print_json({"weights": str(options.weights), "version": entry.version})
        else:
            print(f"{options.weights}: the weights of version {entry.version}")
        return
    manifest = export_version(config, entry, path, options.out, store.run())
    if options.json:
        _print_json(manifest)
        return
    print(
        f"{options.out}: version {manifest.version} as ONNX, {manifest.size:,} bytes; on "
        f"{manifest.compared} samples its probabilities differ from torch's by at most "
        f"{manifest.difference:.1g}"
    )


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())
