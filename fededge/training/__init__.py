"""Local training: the trainer, its loop and its steps; the one place that calls a device half."""

from __future__ import annotations

from fededge.method.base import Examples
from fededge.training.loop import Progress, batch_sizes, steps_of
from fededge.training.process import prepare_threads, prepare_training
from fededge.training.trainer import Answer, Task, Trainer

__all__ = [
    "Answer",
    "Examples",
    "Progress",
    "Task",
    "Trainer",
    "batch_sizes",
    "prepare_threads",
    "prepare_training",
    "steps_of",
]
