"""FedRS: Li and Zhan 2021, "FedRS: Federated learning with restricted softmax for label
distribution non-IID data"; with `scaffold` it is ScaRS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge._internal.lazy_torch import Tensor, torch
from fededge.method.base import Batch, Method, Objective, Output, TurnView

__all__ = ["Aggregation", "FedRS", "Rule", "restriction"]

Rule = Literal["binary", "smooth", "prior"]
Aggregation = Literal["uniform", "n"]


@dataclass(frozen=True)
class FedRS(Method):
    """Cross entropy of a ⊙ z: classes that the device lacks are pushed away less.

    Attributes:
        alpha: the scale of a missing class.
        rs: `binary` scales missing classes only (eq. 8); `smooth`, as the authors' code, is
            α + (1 - α) n_c / max n; `prior` is n_c / Σ n, whatever α is.
        min_count: for `binary`, a class with fewer examples counts as missing.
        agg: the weight of an update: uniform, or its number of examples.
    """

    name: ClassVar[str] = "fedrs"
    alpha: float = 0.9
    rs: Rule = "binary"
    min_count: int = 1
    agg: Aggregation = "uniform"

    def __post_init__(self) -> None:
        self.require(0 <= self.alpha <= 1, "alpha must lie between 0 and 1")
        self.require(self.min_count >= 1, "min_count must be at least 1")

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        if "a" not in r.memo:  # once per turn: it costs nearly as much as a small network's batch
            a = restriction(r.counts, self.alpha, self.rs, self.min_count)
            r.memo["a"] = a.to(out.logits)
        return Objective(scale=r.memo["a"])

    def weight(self, scalars: Mapping[str, float]) -> float:
        return scalars["examples"] if self.agg == "n" else 1.0


def restriction(counts: Tensor, alpha: float, rule: Rule, min_count: int = 1) -> Tensor:
    """Return the scale a_c of each class's logit, float64, from the device's own counts."""
    n = counts.double()
    if rule == "binary":
        return torch.ones_like(n).masked_fill(counts < min_count, alpha)
    if rule == "smooth":
        return n / n.max().clamp(min=1) * (1 - alpha) + alpha
    return n / n.sum().clamp(min=1)
