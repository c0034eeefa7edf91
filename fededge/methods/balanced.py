"""Balanced softmax: Ren et al. 2020, "Balanced meta-softmax for long-tailed visual recognition"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Batch, Method, Objective, Output, Round

__all__ = ["Balanced", "log_prior"]

# The count of a class that is not there: its logit is out of the way, and stays a number.
NONE = 1e-12


@dataclass(frozen=True)
class Balanced(Method):
    """Cross entropy of z + log n_c^γ: frequent classes need no logits of their own to be frequent.

    Attributes:
        gamma: 1 is the device's label distribution, 0 is plain cross entropy.
    """

    name: ClassVar[str] = "balanced"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        self.require(self.gamma >= 0, "gamma must be at least 0")

    def objective(self, r: Round, out: Output, batch: Batch) -> Objective:
        return Objective(shift=log_prior(r.counts, self.gamma).to(out.logits))


def log_prior(counts: Tensor, gamma: float) -> Tensor:
    """log n_c^γ of each class, float64, from the device's own counts."""
    return gamma * counts.double().clamp(min=NONE).log()
