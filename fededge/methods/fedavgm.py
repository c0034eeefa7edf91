"""FedAvgM: Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fededge.flat import Layout, Vector
from fededge.method.base import Merged, Method, State

__all__ = ["FedAvgM"]


@dataclass(frozen=True)
class FedAvgM(Method):
    """Momentum at the coordinator: v ← β v + (w - mean); w ← w - v.

    Attributes:
        beta: β; 0 is FedAvg.
        damped: v ← β v + (1 - β)(w - mean), as in MOON's code: steps shorter by 1 - β.
    """

    name: ClassVar[str] = "fedavgm"
    beta: float = 0.9
    damped: bool = False

    def __post_init__(self) -> None:
        self.require(0 <= self.beta < 1, "beta must lie from 0 to below 1")

    def initial(self, layout: Layout) -> State:
        return {"v": np.zeros(layout.size, np.float32)}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        gain = 1 - self.beta if self.damped else 1.0
        v = self.beta * state["v"] + gain * (w - merged.mean)
        return w - v, {"v": v}
