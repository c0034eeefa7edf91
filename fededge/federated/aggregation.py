"""Aggregation: from the updates of a round to the next global model.

This is the only place that calls a method's coordinator half. Updates are summed in the order of
device ids, so the result does not depend on the order of arrival. Sums are float64, one block at a
time: memory does not grow with the number of devices, and no whole sum, which would take as much
memory as two models, is ever held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from fededge.errors import LayoutError, MethodError
from fededge.federated import sums
from fededge.federated.bounds import capped
from fededge.flat import Layout, Vector, blocks, finite
from fededge.method.base import Merged, State
from fededge.method.stack import Stack

__all__ = ["Update", "aggregate"]

BLOCK = 1 << 19
"""Numbers per block: 4 MB in float64."""


class Update(Protocol):
    """The model that a device sent: a vector, or an object that reads spans of one."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> Vector: ...


@np.errstate(all="ignore")  # numbers that are not finite raise MethodError below
def aggregate(
    method: Stack,
    w: Vector,
    state: State,
    reports: Mapping[str, Mapping[str, float]],
    update: Callable[[str], Update],
    devices: int,
    layout: Layout,
    mean: Vector | None = None,
    max_share: float = 1.0,
) -> tuple[Vector, State]:
    """Compute the next global model and the method's next state.

    Args:
        method: the method whose coordinator half is called.
        w: the global model that the updates were trained from.
        state: the state of the method's coordinator half.
        reports: the scalars of each participant.
        update: returns the model that a device sent; called for every block.
        devices: number of devices in the federation, participants or not.
        layout: the layout of all these vectors.
        mean: replaces the weighted mean of the updates.
        max_share: largest share of the sum of weights for one device.
    """
    weights = {device: method.weight(reports[device]) for device in sorted(reports)}
    weights = {device: weight for device, weight in capped(weights, max_share).items() if weight}
    if not weights:
        return w, state
    own_sums: dict[str, Vector] = {}
    if mean is None:
        mean, own_sums = _sums(method, w, weights, reports, update)
    counted = {device: reports[device] for device in weights}
    merged = Merged(mean, counted, devices, layout, own_sums)
    model, state = method.step(w, merged, state)
    for name, vector in {"global model": model, **state}.items():
        if not finite(vector):
            raise MethodError(f"{method}: the next {name} has numbers that are not finite")
    return model, state


def _sums(
    method: Stack,
    w: Vector,
    weights: Mapping[str, float],
    reports: Mapping[str, Mapping[str, float]],
    update: Callable[[str], Update],
) -> tuple[Vector, dict[str, Vector]]:
    """The weighted mean of the updates, and the method's own sums of their changes."""
    factors = {device: method.sums(reports[device]) for device in weights}
    names = {name: None for own in factors.values() for name in own}
    mean, own_sums = np.empty_like(w), {name: np.empty_like(w) for name in names}
    for span in blocks(0, len(w), BLOCK):
        block = _Block(w[span], weights, factors)
        for device in weights:
            model = update(device)
            if len(model) != len(w):
                raise LayoutError(
                    f"the update of '{device}' has {len(model)} elements, expected {len(w)}"
                )
            block.add(device, model[span])
            del model  # free it before the next one is read
        mean[span] = block.mean
        for name, change in block.sums.items():
            own_sums[name][span] = change
    return mean, own_sums


class _Block:
    """The float64 sums of one block."""

    def __init__(
        self,
        w: Vector,
        weights: Mapping[str, float],
        factors: Mapping[str, Mapping[str, float]],
    ) -> None:
        self.w = w
        self.weights, self.total = weights, sum(weights.values())
        self.factors = factors
        self.mean = np.zeros(len(w))
        names = {name for own in factors.values() for name in own}
        self.sums = {name: np.zeros(len(w)) for name in names}

    def add(self, device: str, model: Vector) -> None:
        sums.accumulate_(self.mean, model, self.weights[device] / self.total)
        for name, factor in self.factors[device].items():
            sums.accumulate_(self.sums[name], model, factor)
            sums.accumulate_(self.sums[name], self.w, -factor)
