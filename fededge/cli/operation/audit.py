"""`fededge audit`: the data that has left this device, from its agent's ledger."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fededge._internal.plain_text import plain
from fededge.config import AgentConfig, load
from fededge.errors import StoreError
from fededge.storage.sealed import read_sealed

__all__ = ["add_to"]

TEXT = """\
Show what has left this device since its state folder was made: every tensor and scalar by name, and
the bytes of each. The agent records data before it sends it; it has no other way to send.

examples:
  fededge audit --config agent.toml
  fededge audit --config agent.toml --json
"""

KINDS = {
    "tensor": "weights of the model that the device trained",
    "scalar": "numbers that the method asks for",
    "report": "round, version and checksums of an update",
    "status": "what the device is doing",
    "claim": "the check whether another process uses its name",
    "framing": "headers and checksums of the pieces of an update",
}


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge_agent.store.file_names import LEDGER

    config = load(options.config, AgentConfig)
    ledger = read_ledger(Path(config.state) / LEDGER)
    if options.json:
        print(json.dumps(ledger, indent=1))
    else:
        _show(config.device, ledger, Console(highlight=False, markup=False, emoji=False))


def read_ledger(path: Path) -> dict[str, int]:
    """Return the bytes sent, by field; raise StoreError for a field that no agent may send."""
    if not path.exists():
        raise StoreError(f"{path}: there is no ledger; nothing has left this device yet")
    ledger = read_sealed(path, dict[str, int])
    if ledger is None:
        raise StoreError(f"{path}: unreadable or damaged; restore it from a backup")
    unknown = sorted(name for name in ledger if name.split()[0] not in KINDS)
    if unknown:
        raise StoreError(f"{path}: has fields that no agent sends: {', '.join(unknown)}")
    return ledger


def _show(device: str, ledger: dict[str, int], console: Console) -> None:
    table = Table(title=f"what has left {device}")
    for name in ("field", "what it is", "bytes"):
        table.add_column(name, justify="right" if name == "bytes" else "left", overflow="fold")
    order = list(KINDS)
    for name in sorted(ledger, key=lambda name: (order.index(name.split()[0]), name)):
        table.add_row(plain(name), KINDS[name.split()[0]], f"{ledger[name]:,}")
    sums: Counter[str] = Counter()
    for name, count in ledger.items():
        sums[name.split()[0]] += count
    table.add_section()
    for kind in order:
        table.add_row(f"all {kind}", "", f"{sums[kind]:,}")
    table.add_row("all", "", f"{sum(sums.values()):,}")
    console.print(table)
