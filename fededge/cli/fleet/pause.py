"""`fededge pause`: no new round begins."""

from __future__ import annotations

import argparse

from fededge.cli.fleet.coordinator_client import add_fleet_options, give

__all__ = ["add_to"]

TEXT = """\
Pause a federation: no new round begins, and an open one ends. Agents and the coordinator stay up.
The pause outlasts a restart of the coordinator. Run it on the coordinator's machine.

examples:
  fededge pause --config coordinator.toml
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_fleet_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge_server.machine.fleet.orders import PauseOrder

    give(options, PauseOrder())
