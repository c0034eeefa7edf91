"""Balanced softmax: Ren et al. 2020, "Balanced meta-softmax for long-tailed visual recognition"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Batch, Method, Objective, Output, TurnView

__all__ = ["Balanced", "log_prior"]

# Stands for a count of 0: the class's probability vanishes, and its logit stays finite.
ABSENT = 1e-12


@dataclass(frozen=True)
class Balanced(Method):
    """Cross entropy of z + log n_c^γ: the logits z need not learn the device's label frequencies.

    Attributes:
        gamma: 1 is the device's label distribution, 0 is plain cross entropy.
    """

    name: ClassVar[str] = "balanced"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        self.require(self.gamma >= 0, "gamma must be at least 0")

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        return Objective(shift=log_prior(r.counts, self.gamma).to(out.logits))


def log_prior(counts: Tensor, gamma: float) -> Tensor:
    """Return log n_c^γ of each class, float64, from the device's own counts."""
    return gamma * counts.double().clamp(min=ABSENT).log()
