"""FedACD: Zhou et al., "Enhancing the Performance of Global Model by Improving the Adaptability
of Local Models in Federated Learning". Its third part, mixup, is a layer: `fedacd+mixup`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge import ops
from fededge._internal.lazy_torch import Tensor, torch
from fededge.method.base import Batch, Finish, Hyper, Method, Objective, Output, Range, TurnView
from fededge.models.evaluation import kl_from_template, probability_matrix

__all__ = ["FedACD", "log_delta"]

LEAST_KL = 1e-12


@dataclass(frozen=True)
class FedACD(Method):
    """Train local models that adapt to the other devices' labels too.

    P_yi is the mean probability of class i over the device's examples of class y. The loss is
    L1 + λ L2: L1 spreads the probability of the wrong classes evenly, L2 is cross entropy with
    logits shifted by log(P_yi / P_iy). An update's weight is V_m: the nearer P is to a perfect
    model's, the larger.

    Attributes:
        lam: λ, the weight of L2.
        tau: the probability that a perfect model gives the right class.
        missing: Δ_yi for a class i that the device has no example of.
        clamp: the least probability that enters a ratio.
        cap: the largest |log Δ| between present classes; 0: no cap.
        kl_reduce: reduction over the present classes; the sum favours devices with few of them.
        agg: the weight of an update: V_m, the number of examples, or uniform.
        l1: include L1 in the loss.
        delta: shift L2's logits; without, L2 is plain cross entropy.
    """

    name: ClassVar[str] = "fedacd"
    scalars: ClassVar[frozenset[str]] = frozenset({"v_m"})
    lam: float = 1.0
    tau: float = 1 - 1e-5
    missing: float = 1e-4
    clamp: float = 1e-8
    cap: float = 0.0
    kl_reduce: Literal["sum", "mean_present"] = "sum"
    agg: Literal["v", "examples", "uniform"] = "v"
    l1: bool = True
    delta: bool = True

    def __post_init__(self) -> None:
        self.require(self.lam > 0, "lam must be above 0")
        self.require(0 < self.tau < 1, "tau must lie between 0 and 1")
        self.require(0 < self.missing <= 1, "missing must be above 0 and at most 1")
        self.require(0 < self.clamp < 1, "clamp must lie between 0 and 1")
        self.require(self.cap >= 0, "cap must be at least 0")

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:  # L1 + λ L2
        if self.delta and "P" not in r.memo:  # lazily: ALA may call this before the training
            self._adapt(r, _probabilities(r, r.received))
        A, Delta = r.memo.get("A"), r.memo.get("Delta")
        return Objective(self.lam, shift=A, factor=Delta, flat=1.0 if self.l1 else 0.0)

    def observe(self, r: TurnView, out: Output, batch: Batch) -> None:
        """Sum probabilities by label; a mixture counts for each of its labels by its share."""
        if not self.delta:
            return
        num, den = r.memo["sums"]
        for y, share in batch.targets:
            ops.probability_sums_(num, den, out.logits, (y,), (share,))

    def epoch_end(self, r: TurnView) -> None:
        if self.delta:
            num, den = r.memo["sums"]
            # A phase may begin in the middle of an epoch and see no example of a class.
            self._adapt(r, torch.where(den[:, None] > 0, num / den[:, None], r.memo["P"]))

    def _adapt(self, r: TurnView, P: Tensor) -> None:
        """Use this P from here on; restart the sums for the next one."""
        A = log_delta(P, r.counts == 0, self.missing, self.clamp, self.cap)
        sums = torch.zeros_like(P), P.new_zeros(len(P))
        r.memo.update(P=P, A=A.to(r.model), Delta=A.exp().to(r.model), sums=sums)

    def finish(self, r: TurnView) -> Finish:
        P = _probabilities(r, r.model)
        KL = kl_from_template(P, self.tau, mean=self.kl_reduce == "mean_present")  # eq. 10
        V = 1 / (1 + math.exp(-1 / max(KL, LEAST_KL)))  # sigmoid(1 / KL)
        return Finish(scalars={"v_m": V})

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> Mapping[str, Range]:
        return {"v_m": Range(0.5, 1)}  # the sigmoid of a non-negative number

    def weight(self, scalars: Mapping[str, float]) -> float:  # eq. 11
        if self.agg == "v":
            return scalars["v_m"]
        return scalars["examples"] if self.agg == "examples" else 1.0


def log_delta(P: Tensor, absent: Tensor, missing: float, clamp: float, cap: float) -> Tensor:
    """Return A_yi = log Δ_yi = log(P_yi / P_iy) (eq. 8); log Δ_missing in columns of `absent`."""
    log_P = P.clamp(min=clamp).log()
    A = log_P - log_P.T
    if cap:
        A = A.clamp(-cap, cap)
    return A.masked_fill(absent, math.log(missing)).fill_diagonal_(0.0)


def _probabilities(r: TurnView, vector: Tensor) -> Tensor:
    """Return P of a model over all the device's examples, in evaluation mode."""
    return probability_matrix(r.outputs(vector).logits, r.data.y, r.data.classes)
