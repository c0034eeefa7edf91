"""Pictures of a comparison: curves, the aggregation/personalisation scatter, fairness, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fededge.figures import new_figure, save_figure
from fededge.simulation.results import Result

__all__ = ["plot_comparison"]

Runs = Mapping[str, Sequence[Result]]

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers tell the rest.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"


def plot_comparison(runs: Runs, labels: Sequence[str], folder: Path) -> list[Path]:
    """Write every picture that these runs allow; returns their paths."""
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
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index // len(COLOURS) % 8]}


def _curves(runs: Runs, metric: str, path: Path) -> Path:
    """Accuracy by round: the mean over seeds, and their range as a band."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for index, (method, results) in enumerate(runs.items()):
        rounds = [row["round"] for row in results[0].rounds]
        values = 100 * np.array([[row[metric] for row in r.rounds] for r in results], dtype=float)
        style = _style(index)
        axes.plot(rounds, values.mean(0), label=method, markevery=max(1, len(rounds) // 8), **style)
        axes.fill_between(rounds, values.min(0), values.max(0), color=style["color"], alpha=0.12)
    _finish(axes, "round", f"{metric.replace('_', ' ')} (%)")
    return save_figure(figure, path)


def _scatter(runs: Runs, path: Path) -> Path:
    """Each method by what it gives all (global) and what it gives each (personal)."""
    figure = new_figure(6, 4.8)
    axes = figure.add_subplot()
    for index, (method, results) in enumerate(runs.items()):
        x = [100 * _value(result, "global_accuracy") for result in results]
        y = [100 * _value(result, "personal_accuracy") for result in results]
        style = _style(index)
        axes.errorbar(
            np.mean(x), np.mean(y), xerr=np.std(x), yerr=np.std(y), fmt=style["marker"],
            color=style["color"], label=method, capsize=2,
        )  # fmt: skip
    _finish(axes, "global accuracy (%)", "personal accuracy (%)")
    return save_figure(figure, path)


def _fairness(runs: Runs, base: str, path: Path) -> Path:
    """How much each device gains or loses in personal accuracy against the first method."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for index, (method, results) in enumerate(runs.items()):
        if method == base:
            continue
        changes = [
            100 * (mine - theirs)
            for result, other in zip(results, runs[base], strict=False)
            for device, mine in result.personal.items()
            if mine is not None and (theirs := other.personal.get(device)) is not None
        ]
        bins = np.linspace(-30, 30, 31)
        axes.hist(
            np.clip(changes, -30, 30), bins=bins.tolist(), histtype="step", linewidth=1.6,
            label=method, color=_style(index)["color"],
        )  # fmt: skip
    axes.axvline(0, color="grey", linewidth=0.8)
    _finish(axes, f"change of a device's personal accuracy against {base} (points)", "devices")
    return save_figure(figure, path)


def _classes(runs: Runs, labels: Sequence[str], path: Path) -> Path:
    """The global model's accuracy class by class, a row a method."""
    rows = [
        np.nanmean(np.array([r.per_class for r in results], dtype=float), axis=0)
        for results in runs.values()
    ]
    figure = new_figure(max(6.0, 0.5 * len(labels) + 2), 0.45 * len(rows) + 2)
    axes = figure.add_subplot()
    image = axes.imshow(100 * np.array(rows), vmin=0, vmax=100, cmap="cividis", aspect="auto")
    axes.set_yticks(range(len(rows)), list(runs))
    if len(labels) <= 20:
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    else:
        axes.set_xlabel("class")
    figure.colorbar(image, label="accuracy (%)")
    return save_figure(figure, path)


def _local_classes(runs: Runs, labels: Sequence[str], path: Path) -> Path:
    """The local models' accuracy class by class, with 95 % intervals, of the first seed."""
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
    if len(labels) <= 20:
        axes.set_xticks(places, labels, rotation=45, ha="right")
    _finish(axes, "class", "accuracy of the last round's local models (%)")
    return save_figure(figure, path)


def _value(result: Result, metric: str) -> float:
    value = result.final[metric]
    return float("nan") if value is None else value


def _finish(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
