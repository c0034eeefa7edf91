"""The table of devices that `devices list` and `status` print, from the API's views of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from fededge._internal.plain_text import plain

__all__ = ["device_table", "print_devices", "round_line"]

COLUMNS = (
    *("device", "standing", "attendance", "in this round", "seen", "examples", "accuracy", "took"),
    "why",
)


def device_table(devices: Iterable[Any]) -> Table:
    table = Table()
    for name in COLUMNS:
        table.add_column(name)
    for one in devices:
        cells = (
            one.device,
            _standing(one),
            one.attendance,
            _doing(one),
            "" if one.seen is None else f"{one.seen:.0f} s ago",
            "" if one.examples is None else str(one.examples),
            "" if one.accuracy is None else f"{one.accuracy:.1%}",
            "" if one.took is None else f"{one.took:.0f} s",
            one.why or one.problem,
        )
        table.add_row(*map(plain, cells))
    return table


def round_line(fleet: Any) -> str:
    """What the round waits for, from the API's view of the federation."""
    parts = ["paused" if fleet.paused else "", f"round {fleet.round}"]
    if fleet.phase == "open":
        parts.append(f"{fleet.answered} of {fleet.asked} devices have answered")
    if fleet.deadline_left is not None:
        parts.append(f"{fleet.deadline_left:.0f} s left")
    if fleet.waits_for:
        parts.append(f"waits for {fleet.waits_for}")
    return plain("; ".join(filter(None, parts)))


def _standing(one: Any) -> str:
    if one.rest_left is not None:
        return f"rested, {one.rest_left:.0f} s left"
    return "quarantined" if one.quarantined else str(one.standing)


def _doing(one: Any) -> str:
    if one.chunks is not None:
        return f"{one.doing} (chunk {one.chunks[0]} of {one.chunks[1]})"
    return str(one.doing)


def print_devices(devices: Iterable[Any]) -> None:
    Console(highlight=False, markup=False, emoji=False).print(device_table(devices))
