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
from fededge.errors import MethodError
from fededge.flat import Layout, finite
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
    layout: Layout,
    mean: Tensor | None = None,
) -> tuple[Tensor, State]:
    """The next global model and the method's next state.

    Args:
        w: the global model that the updates were trained from.
        state: what the method's coordinator half remembers.
        reports: the scalars of each device that took part.
        update: gives the model that a device sent; called once for each that counts.
        devices: how many devices the federation has, taking part or not.
        layout: of all these vectors.
        mean: what to use instead of the weighted mean of the updates.
    """
    weights = {device: method.weight(reports[device]) for device in sorted(reports)}
    weights = {device: weight for device, weight in weights.items() if weight}
    if not weights:
        return w, state
    sums: dict[str, Tensor] = {}
    if mean is None:
        mean, sums = _sums(method, w, weights, reports, update)
    counted = {device: reports[device] for device in weights}
    merged = Merged(mean, counted, devices, layout, sums)
    model, state = method.step(w, merged, state)
    for name, vector in {"global model": model, **state}.items():
        if not finite(vector):
            raise MethodError(f"{method}: the next {name} has numbers that are not finite")
    return model, state


def _sums(
    method: Stack,
    w: Tensor,
    weights: Mapping[str, float],
    reports: Mapping[str, Mapping[str, float]],
    update: Callable[[str], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted mean of the updates, and the method's own sums of their changes."""
    total = sum(weights.values())
    mean = torch.zeros_like(w, dtype=torch.float64)
    sums: dict[str, Tensor] = {}
    for device, weight in weights.items():
        model = update(device)
        ops.accumulate_(mean, model, weight / total)
        for name, factor in method.sums(reports[device]).items():
            change = sums.setdefault(name, torch.zeros_like(mean))
            ops.accumulate_(change, model, factor)
            ops.accumulate_(change, w, -factor)
        del model  # before the next one is read
    return mean.to(w.dtype), {name: change.to(w.dtype) for name, change in sums.items()}
