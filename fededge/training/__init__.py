"""Local training: trainer, loop and steps; the only callers of a method's device half."""

from __future__ import annotations

from fededge.method.base import Examples
from fededge.training.loop import StepCallback, batch_sizes, steps_of
from fededge.training.out_of_memory import device_errors, release_memory
from fededge.training.process import prepare_threads, prepare_training
from fededge.training.trainer import Answer, Task, Trainer

__all__ = [
    "Answer",
    "Examples",
    "StepCallback",
    "Task",
    "Trainer",
    "batch_sizes",
    "device_errors",
    "prepare_threads",
    "prepare_training",
    "release_memory",
    "steps_of",
]
