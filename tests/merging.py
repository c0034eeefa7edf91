"""Rounds of a coordinator on vectors so small that their numbers are worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fededge.federated.aggregation import aggregate
from fededge.flat import Entry, Layout, Vector, as_numpy
from fededge.method.base import State
from fededge.methods import Hyper, Stack, method
from fededge.training import Answer

__all__ = ["HYPER", "Update", "merged", "merged_turns", "numbers", "update"]

Update = tuple[dict[str, float], Vector]

HYPER = Hyper(epochs=10, batch_size=1, lr=0.01)
"""A training in which the reports of these tests are honest."""


def numbers(*values: float) -> Vector:
    """A vector of these, as a coordinator has it."""
    return np.array(values, np.float32)


def update(examples: float, *model: float, steps: float = 1, **scalars: float) -> Update:
    """A device's report and model; the model's last number is a running statistic."""
    report = {"examples": examples, "steps": steps, "loss": 0.0, **scalars}
    return report, numbers(*model)


def merged(
    text: str, w: Sequence[float], rounds: Sequence[Mapping[str, Update]]
) -> list[list[float]]:
    """The global model after each round of these updates, beginning with `w`."""
    stack, size = method(text), len(w) - 1
    weight = Entry("weight", (size,), 0, True)
    layout = Layout((weight, Entry("running_mean", (1,), size, False)))
    model, state = numbers(*w), stack.initial(layout)
    models: list[list[float]] = []
    for updates in rounds:
        reports = {device: report for device, (report, _) in updates.items()}
        for report in reports.values():
            stack.check(report, HYPER)
        model, state = aggregate(
            stack,
            model,
            state,
            reports,
            lambda device, updates=updates: updates[device][1],  # type: ignore[misc]
            devices=10,
            layout=layout,
        )
        models.append(model.tolist())
    return models


def merged_turns(
    stack: Stack,
    w: Tensor,
    state: State,
    answers: Mapping[str, Answer],
    devices: int,
    layout: Layout,
) -> tuple[Tensor, State]:
    """The next global model from turns that began with `w`, for the next turns to begin with."""
    model, state = aggregate(
        stack,
        as_numpy(w),
        state,
        {device: answer.scalars for device, answer in answers.items()},
        lambda device: as_numpy(answers[device].upload),
        devices=devices,
        layout=layout,
    )
    return torch.from_numpy(model), state
