"""FedOpt: Reddi et al. 2021, "Adaptive federated optimization": FedAdagrad, FedAdam, FedYogi."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fededge.flat import Layout, Vector
from fededge.method.base import Merged, Method, State

__all__ = ["FedAdagrad", "FedAdam", "FedOpt", "FedYogi"]


@dataclass(frozen=True)
class FedOpt(Method, ABC):
    """The paper's algorithm 2: an adaptive step at the coordinator along Δ = mean - w.

    Unlike torch's optimisers, it has no bias correction, and v starts at τ².

    Attributes:
        eta: η, the coordinator's learning rate.
        b1: β₁, the decay of the first moment.
        tau: τ; the larger, the less adaptive.
    """

    eta: float = 0.01
    b1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        self.require(self.eta > 0, "eta must be above 0")
        self.require(0 <= self.b1 < 1, "b1 must lie from 0 to below 1")
        self.require(self.tau > 0, "tau must be above 0")

    def initial(self, layout: Layout) -> State:  # line 1: v₋₁ ≥ τ²
        v = np.full(layout.size, self.tau**2, np.float32)
        return {"m": np.zeros(layout.size, np.float32), "v": v}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        delta = merged.mean - w  # line 10
        m = self.b1 * state["m"] + (1 - self.b1) * delta  # line 11
        v = self.second_moment(state["v"], np.square(delta))
        root: Vector = np.sqrt(v)
        return w + self.eta * m / (root + self.tau), {"m": m, "v": v}  # line 15

    @abstractmethod
    def second_moment(self, v: Vector, squares: Vector) -> Vector:
        """Return the next v, from this one and Δ²."""


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """v ← v + Δ²."""

    name: ClassVar[str] = "fedadagrad"

    def second_moment(self, v: Vector, squares: Vector) -> Vector:  # line 12
        return v + squares


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """v ← β₂ v + (1 - β₂) Δ².

    Attributes:
        b2: β₂, the decay of the second moment.
    """

    name: ClassVar[str] = "fedadam"
    b2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.b2 < 1, "b2 must lie from 0 to below 1")

    def second_moment(self, v: Vector, squares: Vector) -> Vector:  # line 14
        return self.b2 * v + (1 - self.b2) * squares


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """v ← v - (1 - β₂) Δ² sign(v - Δ²): v falls no faster than it rises."""

    name: ClassVar[str] = "fedyogi"

    def second_moment(self, v: Vector, squares: Vector) -> Vector:  # line 13
        direction: Vector = np.sign(v - squares)
        return v - (1 - self.b2) * squares * direction
