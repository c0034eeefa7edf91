"""Plots of a comparison: curves, global against personal accuracy, fairness, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fededge.data.figures import new_figure, save_figure
from fededge.simulation.results import Result

__all__ = ["plot_comparison"]

Runs = Mapping[str, Sequence[Result]]

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers extend it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"

MOST_NAMED = 20
"""The most classes named on an axis; more would not be legible."""
WIDEST_CHANGE = 30
"""The range of the fairness plot in points of accuracy; its outer bars collect the rest."""


def plot_comparison(runs: Runs, labels: Sequence[str], folder: Path) -> list[Path]:
    """Write every plot that these runs allow; return their paths."""
    written = [
        _curves(runs, "global_accuracy", folder / "global_accuracy.png"),
        _curves(runs, "personal_accuracy", folder / "personal_accuracy.png"),
        _scatter(runs, folder / "global_against_personal.png"),
        _classes(runs, labels, folder / "classes.png"),
        _local_classes(runs, labels, folder / "local_classes.png"),
    ]
    base = next(iter(runs))
    if len(runs) > 1:
        written.append(_fairness(runs, base, folder / "fairness.png"))
    return written


def _style(index: int) -> dict[str, Any]:
    again = index // len(COLOURS)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[(index + again) % 8]}


def _curves(runs: Runs, metric: str, path: Path) -> Path:
    """Plot accuracy by round: the mean over seeds, and their range as a band."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for index, (method, results) in enumerate(runs.items()):
        rounds = [row["round"] for row in results[0].rounds]
        values = 100 * np.array([[row[metric] for row in r.rounds] for r in results], dtype=float)
        style = _style(index)
        axes.plot(rounds, values.mean(0), label=method, markevery=max(1, len(rounds) // 8), **style)
        axes.fill_between(rounds, values.min(0), values.max(0), color=style["color"], alpha=0.12)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _finish(axes, "round", f"{metric.replace('_', ' ')} (%)")
    return save_figure(figure, path)


def _scatter(runs: Runs, path: Path) -> Path:
    """Plot each method's global accuracy against its personal accuracy."""
    figure = new_figure(6, 4.8)
    axes = figure.add_subplot()
    for index, (method, results) in enumerate(runs.items()):
        x = [100 * _value(result, "global_accuracy") for result in results]
        y = [100 * _value(result, "personal_accuracy") for result in results]
        style = _style(index)
        axes.errorbar(
            np.mean(x), np.mean(y), xerr=_deviation(x), yerr=_deviation(y), fmt=style["marker"],
            color=style["color"], label=method, capsize=2,
        )  # fmt: skip
    _finish(axes, "global accuracy (%)", "personal accuracy (%)")
    return save_figure(figure, path)


def _deviation(values: Sequence[float]) -> Any:
    """Return the sample standard deviation, as in the table."""
    return np.std(values, ddof=min(1, len(values) - 1))


def _fairness(runs: Runs, base: str, path: Path) -> Path:
    """Plot the devices' gains and losses of personal accuracy against the first method."""
    others = [method for method in runs if method != base]
    figure = new_figure(7, 1.1 * len(others) + 1.2)
    panels = figure.subplots(len(others), sharex=True, sharey=True, squeeze=False)[:, 0]
    # Bins of 2 points, one of them centred at 0 for devices without a change.
    bins = np.arange(-WIDEST_CHANGE - 1, WIDEST_CHANGE + 2, 2).tolist()
    for axes, method in zip(panels, others, strict=True):
        changes = np.array(_changes(runs[method], runs[base]))
        axes.hist(np.clip(changes, bins[0], bins[-1]), bins=bins, color=COLOURS[0])
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(method, loc="left", fontsize="small", pad=2)
        axes.grid(alpha=0.3)
    panels[0].yaxis.get_major_locator().set_params(integer=True, nbins=4)
    panels[-1].set_xlabel(f"change of a device's personal accuracy against {base} (points)")
    figure.supylabel("devices", x=0.04, fontsize="medium")
    figure.subplots_adjust(hspace=0.5)
    return save_figure(figure, path)


def _changes(results: Sequence[Result], base: Sequence[Result]) -> list[float]:
    """Return the change of each device and seed, in points."""
    return [
        100 * (mine - theirs)
        for result, other in zip(results, base, strict=True)
        for device, mine in result.personal.items()
        if mine is not None and (theirs := other.personal.get(device)) is not None
    ]


def _classes(runs: Runs, labels: Sequence[str], path: Path) -> Path:
    """Plot the global model's accuracy by class, one row per method."""
    rows = 100 * np.array([_mean_by_class(results) for results in runs.values()])
    figure = new_figure(max(6.0, 0.5 * len(labels) + 2), 0.45 * len(rows) + 2)
    axes = figure.add_subplot()
    image = axes.imshow(rows, vmin=0, vmax=100, cmap="cividis", aspect="auto")
    axes.set_yticks(range(len(rows)), list(runs))
    _name_classes(axes, labels)
    if len(labels) <= MOST_NAMED:
        for (row, column), value in np.ndenumerate(rows):
            shade = "white" if value < 55 else "black"
            text = "–" if np.isnan(value) else f"{value:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=shade)
    figure.colorbar(image, label="accuracy (%)")
    return save_figure(figure, path)


def _mean_by_class(results: Sequence[Result]) -> Any:
    """Return the mean over seeds; NaN for a class that is not in the test set."""
    rows = np.array([result.per_class for result in results], dtype=float)
    return np.ma.masked_invalid(rows).mean(axis=0).filled(np.nan)


def _local_classes(runs: Runs, labels: Sequence[str], path: Path) -> Path:
    """Plot the local models' accuracy by class, with 95 % intervals, for the first seed."""
    figure = new_figure(max(7.0, 0.6 * len(labels) + 2), 4.2)
    axes = figure.add_subplot()
    places = np.arange(len(labels))
    for index, (method, results) in enumerate(runs.items()):
        local = {k: 100 * np.array(v, dtype=float) for k, v in results[0].local_classes.items()}
        offset = (index - (len(runs) - 1) / 2) * 0.8 / len(runs)
        style = _style(index)
        axes.errorbar(
            places + offset, local["mean"], yerr=local["interval"], fmt=style["marker"],
            color=style["color"], label=method, capsize=2, markersize=4,
        )  # fmt: skip
    _name_classes(axes, labels)
    axes.set_ylim(-3, 103)  # the interval of few models may exceed 0 to 100 %
    _finish(axes, "", "accuracy of the last round's local models (%)")
    return save_figure(figure, path)


def _name_classes(axes: Any, labels: Sequence[str]) -> None:
    if len(labels) <= MOST_NAMED:
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    else:
        axes.set_xlabel("class")


def _value(result: Result, metric: str) -> float:
    value = result.final[metric]
    return float("nan") if value is None else value


def _finish(axes: Any, x: str, y: str) -> None:
    """Name the axes; place the legend beside the plot, where it hides nothing."""
    axes.set_xlabel(x or axes.get_xlabel())
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
