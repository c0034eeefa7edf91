"""Plot of a partition: the number of samples by device and class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fededge.data.figures import new_figure, save_figure
from fededge.errors import ConfigError

__all__ = ["plot_partition"]

BLUE = "#0072B2"  # of the Okabe-Ito palette, which colour-blind readers can tell apart
LARGEST_DOT = 600.0  # square points
SMALLEST_DOT = 1.5  # a single sample stays visible


def plot_partition(counts: np.ndarray, labels: Sequence[str], path: Path, title: str) -> None:
    """Draw devices against classes, the area of a dot being its number of samples.

    Args:
        counts: samples, int [devices, classes].
        labels: the name of each class.
        path: the file to write; its suffix (png, svg or pdf) decides the format.
        title: the line above the plot.
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.size == 0 or counts.shape[1] != len(labels):
        raise ConfigError(f"cannot plot counts {list(counts.shape)} of {len(labels)} classes")
    save_figure(_draw(counts, labels, title), path)


def _draw(counts: np.ndarray, labels: Sequence[str], title: str) -> Any:
    devices, classes = counts.shape
    width, height = np.clip(0.36 * devices, 4, 14), np.clip(0.36 * classes, 2.4, 14)
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    cell = 72**2 * width * height / (devices * classes)  # in square points, as the dots
    _dots(axes, counts, min(0.75 * cell, LARGEST_DOT))
    axes.set(xlim=(-0.6, devices - 0.4), ylim=(classes - 0.4, -0.6), title=title)
    axes.set(xlabel="device", ylabel="class")
    axes.set_xticks(_ticks(devices))
    axes.set_yticks(_ticks(classes), [labels[number] for number in _ticks(classes)])
    axes.grid(True, color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _dots(axes: Any, counts: np.ndarray, largest: float) -> None:
    most = max(int(counts.max()), 1)
    device, label = np.nonzero(counts)
    style = {"color": BLUE, "alpha": 0.85, "linewidths": 0}
    area = counts[device, label] / most * largest
    axes.scatter(device, label, s=np.maximum(area, SMALLEST_DOT), **style)
    for size in _examples(most):
        dot = max(size / most * largest, SMALLEST_DOT)
        axes.scatter([], [], s=dot, label=f"{size:,}", **style)
    place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
    axes.legend(title="samples", labelspacing=1.2, handletextpad=1.2, borderpad=1.2, **place)


def _ticks(count: int) -> range:
    """Return every position, or every 2nd, 5th, 10th, …: at most 40."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    return range(0, count, next(step for step in steps if count <= 40 * step))


def _examples(most: int) -> list[int]:
    """Return the legend's sizes: the largest, a quarter and a twentieth, to one digit."""
    parts = (max(most // part, 1) for part in (1, 4, 20))
    rounded = {part // 10 ** (len(str(part)) - 1) * 10 ** (len(str(part)) - 1) for part in parts}
    return sorted(rounded, reverse=True)
