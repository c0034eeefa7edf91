"""FedLC: Zhang et al. 2022, "Federated learning with label distribution skew via logits
calibration".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Batch, Method, Objective, Output, TurnView

__all__ = ["FedLC", "margins"]

# Stands for a count of 0: e^-100 vanishes in a softmax, and the margin stays finite.
ABSENT = 1e-8


@dataclass(frozen=True)
class FedLC(Method):
    """Cross entropy of z - τ n_c^(-1/4), from the device's own counts: rare classes get a margin.

    The paper leaves the true class out of the denominator, and its loss is unbounded below; this
    is the cross entropy of all public implementations.

    Attributes:
        tau: the strength of the margins; 0 is plain cross entropy.
    """

    name: ClassVar[str] = "fedlc"
    tau: float = 1.0

    def __post_init__(self) -> None:
        self.require(self.tau >= 0, "tau must be at least 0")

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        return Objective(shift=-margins(r.counts, self.tau).to(out.logits))


def margins(counts: Tensor, tau: float) -> Tensor:
    """Return τ n_c^(-1/4) of each class, float64."""
    return tau * counts.double().clamp(min=ABSENT).pow(-0.25)
