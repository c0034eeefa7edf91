"""`fededge history`: the rounds of a federation and the orders of its operator."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any

from fededge.cli.fleet.coordinator_client import add_fleet_options, fleet_of, print_json

__all__ = ["add_to"]

TEXT = """\
Show the rounds that a federation has done, with accuracies, durations and participants, and the
orders that its operator has given, and the settings that changed. Run it on the coordinator's
machine.

examples:
  fededge history --config coordinator.toml
  fededge history --config coordinator.toml --plot accuracy.png
  fededge history --config coordinator.toml --json
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_fleet_options(parser)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the accuracies as PNG, SVG or PDF"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    history = fleet_of(options).history()
    if options.plot is not None:
        _plot(history, options.plot)
    if options.json:
        print_json(history)
    elif options.plot is None:
        _show(history)
    else:
        print(f"{options.plot}: {len(history.rounds)} versions")


def _show(history: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("rounds done", "date", "version", "accuracy", "devices", "their mean", "took"):
        table.add_column(name, no_wrap=name == "version")
    for one in history.rounds:
        table.add_row(*_cells(one))
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(table)
    said = [(order["at"], _order(order)) for order in history.orders]
    said += [(one.date, _change(one)) for one in history.changes if one.kind == "settings"]
    for at, text in sorted(said):
        console.print(f"{_date(at)}  {text}", soft_wrap=True)


def _order(order: dict[str, Any]) -> str:
    about = order.get("device") or order.get("version") or ""
    reason = f": {order['reason']}" if order.get("reason") else ""
    return f"{order['order']} {about}".rstrip() + reason


def _change(one: Any) -> str:
    return f"from the version after {one.round} rounds on: {one.what}"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "minutes")


def _cells(one: Any) -> tuple[str, ...]:
    mean = personal_accuracy(one)
    return (
        str(one.round),
        "" if one.date is None else _date(one.date),
        one.version + (f" (model of {one.restored})" if one.restored else ""),
        "" if one.accuracy is None else f"{one.accuracy:.1%}",
        str(one.participants),
        "" if mean is None else f"{mean:.1%}",
        "" if one.seconds is None else f"{one.seconds:.0f} s",
    )


def personal_accuracy(one: Any) -> float | None:
    """The mean accuracy of the personal models that devices reported."""
    told = [accuracy for accuracy in one.devices.values() if accuracy is not None]
    return sum(told) / len(told) if told else None


def _plot(history: Any, path: Path) -> None:
    """Draw the accuracy of each version, and the mean of the devices' own models."""
    from fededge.data.figures import new_figure, save_figure

    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    rounds = [one.round for one in history.rounds]
    own = [one.accuracy for one in history.rounds]
    personal = [personal_accuracy(one) for one in history.rounds]
    for name, values in (("global model", own), ("devices' own models, mean", personal)):
        found = [(x, 100 * y) for x, y in zip(rounds, values, strict=True) if y is not None]
        if found:
            axes.plot(*zip(*found, strict=True), marker="o", markersize=3, label=name)
    axes.set_xlabel("rounds done")
    axes.set_ylabel("accuracy (%)")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    save_figure(figure, path)
