"""`fededge resume`: rounds begin again after `fededge pause`."""

from __future__ import annotations

import argparse

from fededge.cli.fleet.coordinator_client import add_fleet_options, give

__all__ = ["add_to"]

TEXT = """\
End the pause of a federation: rounds begin again. Run it on the coordinator's machine.

examples:
  fededge resume --config coordinator.toml
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_fleet_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge_server.machine.fleet.orders import ResumeOrder

    give(options, ResumeOrder())
