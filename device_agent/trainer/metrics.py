"""Metrics of a device's own turns: one row a turn in `metrics.csv`, which never leaves the device.

Metrics that need other devices' labels or a global test set (average risk, forgetting of absent
classes) exist in simulation only.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fededge.method.teacher import outputs
from fededge.models.evaluation import (
    class_accuracies,
    kl_from_template,
    learning_performance,
    probability_matrix,
)
from fededge.training import Answer, Trainer

__all__ = ["Diary", "turn_metrics", "unmeasured"]

log = logging.getLogger("agent")

MOST_BYTES = 1 << 20
"""A longer file is rotated to `metrics.1.csv`."""


class Interruptible(nn.Module):
    """A preprocessing that asks before every batch whether to go on."""

    def __init__(self, preprocess: nn.Module, go_on: Callable[[], None]) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.go_on = go_on

    def forward(self, inputs: Tensor) -> Tensor:
        self.go_on()
        found: Tensor = self.preprocess(inputs)
        return found


def turn_metrics(
    trainer: Trainer, received: Tensor, answer: Answer, go_on: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """The metrics of a turn, on the device's own data; `go_on` may raise before any batch.

    Accuracies are means over the held-out examples; `kl` is KL(P‖Q) of the uploaded model on the
    training examples; `learning_present` is the ratio of the accuracy by class after training to
    the one before. NaN if nothing is held out.
    """
    data, preprocess = trainer.data, Interruptible(trainer.preprocess, go_on)
    here = torch.bincount(data.held_y, minlength=data.classes)
    before, after = (_by_class(trainer, preprocess, vector) for vector in (received, answer.upload))
    logits = outputs(trainer.net, answer.upload, preprocess, data.x).logits
    present, _ = learning_performance(before, after[None], data.counts[None])
    matrix = probability_matrix(logits, data.y.to(logits.device), data.classes)
    return _row(_mean(before, here), _mean(after, here), present, kl_from_template(matrix), answer)


def unmeasured(answer: Answer) -> dict[str, float]:
    """The metrics of a turn after which the next one began at once: NaN for what takes time."""
    return _row(math.nan, math.nan, math.nan, math.nan, answer)


def _row(
    before: float, after: float, present: float, divergence: float, answer: Answer
) -> dict[str, float]:
    return {
        "global_accuracy": before,
        "local_accuracy": after,
        "personal_accuracy": answer.personal_accuracy,
        "learning_present": present,
        "kl": divergence,
        **answer.scalars,
    }


def _by_class(trainer: Trainer, preprocess: nn.Module, vector: Tensor) -> Tensor:
    data, net = trainer.data, trainer.net
    before = net.swap(vector)
    try:
        return class_accuracies(net.module, preprocess, data.held_x, data.held_y, data.classes)
    finally:
        net.swap(before)


def _mean(accuracies: Tensor, counts: Tensor) -> float:
    return float((accuracies.nan_to_num() * counts).sum() / counts.sum())


class Diary:
    """Appends rows to the file; a row that cannot be written is only a warning."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.csv"

    def add(self, row: Mapping[str, object]) -> None:
        try:
            self._add(row)
        except OSError as error:
            log.warning("%s: metrics are not kept (%s)", self.path, error.strerror)

    def _add(self, row: Mapping[str, object]) -> None:
        header = _line(row)
        with open(self.path, "a+", encoding="utf-8", newline="") as file:
            file.seek(0)
            same = file.readline() == header
            size = file.seek(0, os.SEEK_END)
            if same and size < MOST_BYTES:
                file.write(_line(row.values()))
                return
        if size:  # another method has other columns
            self.path.replace(self.path.with_suffix(".1.csv"))
        self.path.write_text(header + _line(row.values()), encoding="utf-8")


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
