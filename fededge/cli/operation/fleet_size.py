"""The size of a fleet on the command line: it bounds the memory of its broker."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fededge.errors import ConfigError

if TYPE_CHECKING:
    from fededge.broker.provisioning import FleetSize

__all__ = ["add_sizes", "fleet_size", "given_sizes"]


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of the federation, which bound its broker's memory."""
    sizes = parser.add_argument_group("the memory limit of a broker")
    sizes.add_argument("--fleet", type=int, metavar="N", help="number of devices (default: 100)")
    sizes.add_argument(
        "--at-once",
        type=int,
        metavar="N",
        help="devices that send an update at once: participants times over_select (default: 10)",
    )
    sizes.add_argument(
        "--model-bytes",
        type=int,
        metavar="N",
        help="size of a model on the wire: 4 for each of its numbers (default: 67108864)",
    )
    sizes.add_argument(
        "--chunk-bytes",
        type=int,
        metavar="N",
        help="as in the coordinator's [transfer] section (default: 262144)",
    )


def given_sizes(options: argparse.Namespace) -> dict[str, int | None]:
    """The sizes that are on the command line."""
    names = ("fleet", "at_once", "model_bytes", "chunk_bytes")
    return {name: getattr(options, name) for name in names}


def fleet_size(options: argparse.Namespace) -> FleetSize:
    from fededge.broker.provisioning import FleetSize

    fleet = max(100, len(options.devices)) if options.fleet is None else options.fleet
    usual = {"fleet": fleet, "at_once": min(10, fleet), "model_bytes": 64 << 20}
    usual["chunk_bytes"] = 256 << 10
    sizes = {name: usual[name] if n is None else n for name, n in given_sizes(options).items()}
    bounds = {"fleet": (1, 1_000_000), "at_once": (1, fleet), "model_bytes": (1, 1 << 40)}
    for name, (least, most) in {**bounds, "chunk_bytes": (1024, 16 << 20)}.items():
        if not least <= sizes[name] <= most:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} {sizes[name]}: must be {least} to {most}")
    return FleetSize(*sizes.values())
