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
    State,
    TurnView,
)
from fededge.methods.fednova import a_norm

__all__ = ["Scaffold"]


@dataclass(frozen=True)
class Scaffold(Method):
    """Correct each device's client drift: add c - c_i to its gradient.

    A device uploads its model and the scalar 1/(K η); the coordinator derives the change of c_i
    from the change of the model, Δc_i = (x - y_i)/(K η) - c. All updates weigh the same, unless
    another layer sets their weights (`fedacd+scaffold`); c ignores these.

    Attributes:
        server_lr: η_g, the step size towards the mean of the updates.
        c_scale: c is the mean of c_i over `all` devices (the paper), or moves as if the
            `sampled` ones were all.
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

    def pull(self, r: TurnView) -> Affine | None:  # line 10: y_i ← y_i - η (g_i(y_i) - c_i + c)
        return Affine(bias=r.sent["c"] - _own(r))

    def finish(self, r: TurnView) -> Finish:  # line 12 (ii): c_i ← c_i - c + (x - y_i)/(K η)
        if not r.steps:  # no gradient was seen: c_i stays
            return Finish(scalars={"slope": 0.0})
        # With momentum, K exceeds the steps; momentum starts at zero in each phase.
        K = sum(a_norm(steps, r.hyper.momentum, 0.0) for steps in r.phase_steps.values())
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
        trained = sum(scalars["slope"] > 0 for scalars in merged.scalars.values())
        dc = merged.sums["g"] - trained * c  # Σ Δc_i
        N = merged.devices if self.c_scale == "all" else len(merged.scalars)
        c = c + dc / float(N)  # line 17
        return w + self.server_lr * (merged.mean - w), {"c": c}  # line 16


def _own(r: TurnView) -> Tensor:
    """Return c_i, zero at first."""
    return r.private.tensor("c_i") if "c_i" in r.private else torch.zeros_like(r.received)
