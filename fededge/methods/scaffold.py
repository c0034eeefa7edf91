"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated
learning", option II.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fededge._internal.lazy_torch import Tensor, torch
from fededge.flat import Layout, Vector
from fededge.method.base import (
    Affine,
    Finish,
    Follows,
    Hyper,
    Merged,
    Method,
    Range,
    Round,
    State,
)
from fededge.methods.fednova import length

__all__ = ["Scaffold"]


@dataclass(frozen=True)
class Scaffold(Method):
    """Subtract each device's drift c_i - c from its gradient.

    A device sends its model alone, and 1/(K η) as a number: the coordinator works out the change
    of c_i from the change of the model, Δc_i = (x - y_i)/(K η) - c. All updates count the same,
    unless a layer beside it decides what they count (`fedacd+scaffold`); c does not follow that.

    Attributes:
        server_lr: η_g, how far to go towards the mean of the updates.
        c_scale: whether c is the mean of c_i over all devices (the paper), or moves as if the
            sampled ones were all.
    """

    name: ClassVar[str] = "scaffold"
    scalars: ClassVar[frozenset[str]] = frozenset({"slope"})
    keeps: ClassVar[Mapping[str, Follows]] = {"c_i": "update"}
    sends: ClassVar[tuple[str, ...]] = ("c",)
    equal: ClassVar[bool] = True
    server_lr: float = 1.0
    c_scale: Literal["all", "sampled"] = "all"

    def __post_init__(self) -> None:
        self.require(self.server_lr > 0, "server_lr must be above 0")

    def pull(self, r: Round) -> Affine | None:  # line 10: y_i ← y_i - η (g_i(y_i) - c_i + c)
        return Affine(bias=r.sent["c"] - _own(r))

    def finish(self, r: Round) -> Finish:  # line 12 (ii): c_i ← c_i - c + (x - y_i)/(K η)
        if not r.steps:  # nothing was learned of the gradient here
            return Finish(scalars={"slope": 0.0})
        # More than the steps, with momentum, which begins anew in each phase.
        K = sum(length(steps, r.hyper.momentum, 0.0) for steps in r.phase_steps.values())
        slope = 1 / (K * r.hyper.lr)
        c_i = _own(r) - r.sent["c"] + slope * (r.received - r.model)
        return Finish(scalars={"slope": slope}, private={"c_i": c_i})

    def initial(self, layout: Layout) -> State:
        return {"c": np.zeros(layout.size, np.float32)}

    def send(self, state: State) -> State:  # line 5
        return {"c": state["c"]}

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> Mapping[str, Range]:
        most = 1 / (steps * hyper.lr) if steps else 0  # K is at least the steps
        return {"slope": Range(0, most)}

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        return {"g": -scalars["slope"]}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        c = state["c"]
        trained = sum(report["slope"] > 0 for report in merged.reports.values())
        dc = merged.sums["g"] - trained * c  # Σ Δc_i
        N = merged.devices if self.c_scale == "all" else len(merged.reports)
        c = c + dc / float(N)  # line 17
        return w + self.server_lr * (merged.mean - w), {"c": c}  # line 16


def _own(r: Round) -> Tensor:
    """c_i, zero at first."""
    return r.private.tensor("c_i") if "c_i" in r.private else torch.zeros_like(r.received)
