"""Metrics of a device's own turns: one row a turn in `metrics.csv`, which never leaves the device.

Metrics that need other devices' labels or a global test set (average risk, forgetting of absent
classes) exist in simulation only.
"""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fededge.method.teacher import outputs
from fededge.models.evaluation import (
    class_accuracies,
    kl_from_template,
    learning_performance,
    probability_matrix,
)
from fededge.training import Answer, Trainer

__all__ = ["Diary", "turn_metrics"]

log = logging.getLogger("agent")

MOST_BYTES = 1 << 20
"""A longer file is rotated to `metrics.1.csv`."""


def turn_metrics(trainer: Trainer, received: Tensor, answer: Answer) -> dict[str, float]:
    """The metrics of a turn, on the device's own data.

    Accuracies are means over the held-out examples; `kl` is KL(P‖Q) of the uploaded model on the
    training examples; `learning_present` is the ratio of the accuracy by class after training to
    the one before. NaN if nothing is held out.
    """
    data = trainer.data
    here = torch.bincount(data.held_y, minlength=data.classes)
    before, after = (_by_class(trainer, vector) for vector in (received, answer.upload))
    logits = outputs(trainer.net, answer.upload, trainer.preprocess, data.x).logits
    present, _ = learning_performance(before, after[None], data.counts[None])
    return {
        "global_accuracy": _mean(before, here),
        "local_accuracy": _mean(after, here),
        "personal_accuracy": answer.personal_accuracy,
        "learning_present": present,
        "kl": kl_from_template(probability_matrix(logits, data.y.to(logits.device), data.classes)),
        **answer.scalars,
    }


def _by_class(trainer: Trainer, vector: Tensor) -> Tensor:
    data, net = trainer.data, trainer.net
    before = net.swap(vector)
    try:
        return class_accuracies(
            net.module, trainer.preprocess, data.held_x, data.held_y, data.classes
        )
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
