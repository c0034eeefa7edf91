"""The common part of fleet commands: the configuration, the coordinator, and the outcome."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["add_fleet_options", "fleet_of", "give", "print_json"]


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the coordinator's TOML file"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def fleet_of(options: argparse.Namespace) -> Any:
    """The `FleetClient` of this configuration, whether its coordinator runs or not."""
    from fededge.config import CoordinatorConfig, load

    config = load(options.config, CoordinatorConfig)
    from fededge_server.api.client import FleetClient

    return FleetClient(config)


def give(options: argparse.Namespace, order: Any) -> None:
    """Give an order, and print what came of it."""
    outcome = fleet_of(options).order(order)
    if options.json:
        print_json(outcome)
    else:
        print(outcome.text)


def print_json(value: Any) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=1))
