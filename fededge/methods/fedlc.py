"""FedLC: Zhang et al. 2022, "Federated learning with label distribution skew via logits
calibration".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Batch, Method, Objective, Output, Round

__all__ = ["FedLC", "margins"]

# The count of a class that is not there: e^-100 is no weight in a softmax, and stays a number.
NONE = 1e-8


@dataclass(frozen=True)
class FedLC(Method):
    """Cross entropy of z - τ n_c^(-1/4), from the device's own counts: rare classes get a margin.

    The paper leaves the true class out of the denominator, which lets the loss fall without end;
    this is the cross entropy that all public code has.

    Attributes:
        tau: the strength of the margins; 0 is plain cross entropy.
    """

    name: ClassVar[str] = "fedlc"
    tau: float = 1.0

    def __post_init__(self) -> None:
        self.require(self.tau >= 0, "tau must be at least 0")

    def objective(self, r: Round, out: Output, batch: Batch) -> Objective:
        return Objective(shift=-margins(r.counts, self.tau).to(out.logits))


def margins(counts: Tensor, tau: float) -> Tensor:
    """τ n_c^(-1/4) of each class, float64."""
    return tau * counts.double().clamp(min=NONE).pow(-0.25)
