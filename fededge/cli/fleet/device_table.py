"""The table of devices that `devices list` and `status` print, from the API's views of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from fededge._internal.plain_text import plain

__all__ = ["cells_of", "device_table", "print_devices", "round_line"]

COLUMNS = ("device", "standing", "in this round", "seen", "examples", "accuracy", "took", "why")


def device_table(devices: Iterable[Any]) -> Table:
    """A row for each device; a column in which no device has anything is left out."""
    rows = [[plain(cell) for cell in cells_of(one).values()] for one in devices]
    table = Table(box=None, padding=(0, 2, 0, 0))  # 80 columns are enough for a usual row
    shown = [at for at in range(len(COLUMNS)) if at < 3 or any(row[at] for row in rows)]
    for at in shown:
        table.add_column(COLUMNS[at], no_wrap=COLUMNS[at] != "why")
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    return table


def cells_of(one: Any) -> dict[str, str]:
    """The text of each column for a device."""
    cells = (
        one.device,
        _standing(one),
        _doing(one),
        "" if one.seen is None else f"{one.seen:.0f} s",
        "" if one.examples is None else f"{one.examples:,}",
        "" if one.accuracy is None else f"{one.accuracy:.1%}",
        "" if one.took is None else f"{one.took:.0f} s",
        one.why or one.problem,
    )
    return dict(zip(COLUMNS, cells, strict=True))


def round_line(fleet: Any) -> str:
    """One line about the open round: its answers, its deadline, and the devices it waits for."""
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
    if one.quarantined:
        return "quarantined"
    return str(one.attendance if one.standing == "active" else one.standing)


def _doing(one: Any) -> str:
    if one.steps is not None:
        return f"{one.doing} (step {one.steps[0]} of {one.steps[1]})"
    if one.chunks is not None:
        return f"{one.doing} (chunk {one.chunks[0]} of {one.chunks[1]})"
    return str(one.doing)


def print_devices(devices: Iterable[Any]) -> None:
    Console(highlight=False, markup=False, emoji=False).print(device_table(devices))
