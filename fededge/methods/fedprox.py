"""FedProx: Li et al. 2020, "Federated optimization in heterogeneous networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fededge.method.base import Affine, Method, TurnView

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(Method):
    """Hold the local model near the global one: h(w) = F(w) + μ/2 · ‖w - w_t‖²."""

    name: ClassVar[str] = "fedprox"
    mu: float = 0.01

    def __post_init__(self) -> None:
        self.require(self.mu >= 0, "mu must be at least 0")

    def pull(self, r: TurnView) -> Affine | None:  # ∇h = ∇F + μ (w - w_t)
        return Affine(kappa=self.mu, anchor=r.received) if self.mu else None
