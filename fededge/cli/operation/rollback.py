"""`fededge rollback`: continue a federation from an earlier version of its model."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_to"]

TEXT = """\
Continue a federation from an earlier version of its model, by default the last good one. Run it on
the coordinator's machine. The current version stays in the journal. A coordinator that does not run
goes back when it starts.

examples:
  fededge rollback --config coordinator.toml --list
  fededge rollback --config coordinator.toml
  fededge rollback --config coordinator.toml --to 000041-0123456789abcdef
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    parser.add_argument("--to", default="", metavar="VERSION", help="default: the last good one")
    parser.add_argument("--list", action="store_true", help="show the versions, change nothing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge.config import CoordinatorConfig, load

    folder = Path(load(options.config, CoordinatorConfig).state)
    from fededge_server.model import rollback

    if options.list:
        print("\n".join(rollback.versions(folder)))
    else:
        print(rollback.go_back(folder, options.to))
