"""From the updates of a round to the next global model.

This is the one place where a method's coordinator half is called. Updates are summed in the order
of device ids, in float64, one at a time: the result depends on who took part and on nothing else,
and memory does not grow with the number of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fededge import ops
from fededge.methods.base import Merged, State
from fededge.methods.compose import Stack

__all__ = ["aggregate"]


def aggregate(
    method: Stack,
    w: Tensor,
    state: State,
    reports: Mapping[str, Mapping[str, float]],
    update: Callable[[str], Tensor],
    devices: int,
) -> tuple[Tensor, State]:
    """The next global model and the method's next state.

    Args:
        w: the global model that the updates were trained from.
        state: what the method's coordinator half remembers.
        reports: the scalars of each device that took part.
        update: gives the model that a device sent; called once for each.
        devices: how many devices the federation has, taking part or not.
    """
    weights = {device: method.weight(reports[device]) for device in sorted(reports)}
    total = sum(weights.values())
    if not total:
        return w, state
    mean = torch.zeros_like(w, dtype=torch.float64)
    for device, weight in weights.items():
        ops.accumulate_(mean, update(device), weight / total)
    return method.step(w, Merged(mean.to(w.dtype), reports, devices), state)
