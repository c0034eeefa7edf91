"""`fededge apply`: change the settings of a run while it lasts."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fededge.cli.fleet.coordinator_client import add_fleet_options, print_json
from fededge.errors import RefusedError

__all__ = ["add_to"]

TEXT = """\
Change the settings of a run while it lasts: the method, [training], [transfer], [rounds], [robust],
[rollout] and keep_versions. FILE is a coordinator's configuration with the new values; its `state`
is the run's folder. The command shows each key that differs with what the change means, asks, and
orders it. An open round ends with the old settings, and its updates count; the next one has the new
settings. Agents follow by themselves. Other keys ([broker], [data], [hardware], [log], signing_key)
are read when the coordinator starts. Run it on the coordinator's machine.

examples:
  fededge apply --config new.toml
  fededge apply --config new.toml --dry-run
  fededge apply --config new.toml --yes --json
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_fleet_options(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only show the difference")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge.config import CoordinatorConfig, load

    config = load(options.config, CoordinatorConfig)
    from fededge_server.api.client import FleetClient
    from fededge_server.machine.fleet.orders import ApplyOrder
    from fededge_server.model.settings_plan import plan_of

    plan = plan_of(config)
    outcome = None
    if not options.json:
        _show(plan)
    if plan.differences and not options.dry_run:
        _ask(options)
        outcome = FleetClient(config).order(ApplyOrder(plan.wanted))
    if options.json:
        print_json({"differences": plan.differences, "outcome": outcome})
    elif outcome is not None:
        print(outcome.text)


def _show(plan: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    if not plan.differences:
        print("nothing to change: the run has these settings, or they are ordered")
        return
    table = Table()
    for name in ("key", "now", "new", "meaning"):
        table.add_column(name, overflow="fold")
    for one in plan.differences:
        table.add_row(one.key, one.old, one.new, one.meaning)
    Console(highlight=False, markup=False, emoji=False).print(table)
    if plan.begun:
        print(
            "A version of its own begins with these settings: it has the model of the one before, "
            "and counts as a round. Devices fetch it and get ready anew."
        )


def _ask(options: argparse.Namespace) -> None:
    """Ask a person at the terminal; RefusedError without a yes."""
    if options.yes:
        return
    if options.json or not sys.stdin.isatty():
        raise RefusedError("nothing was changed: without a terminal, --yes must say so")
    if input("Apply? [y/N] ").strip().lower() not in ("y", "yes"):
        raise RefusedError("nothing was changed")
