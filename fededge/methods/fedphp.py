"""FedPHP: Li et al. 2021, "FedPHP: Federated personalization with inherited private models"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge import ops
from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Batch, Finish, Follows, Method, Objective, Output, Round
from fededge.method.feature_losses import mmd
from fededge.methods.fedrs import Aggregation

__all__ = ["FedPHP"]


@dataclass(frozen=True)
class FedPHP(Method):
    """A private model ψ_p, the moving average of the device's local ones, teaches the next one.

    Attributes:
        mu: the most that ψ_p keeps of itself; less in the first participations.
        turns: Q · T, how often a device is expected to take part; 0: as the run has it.
        transfer: what is learned from ψ_p: its probabilities, or where its features lie.
        lam: λ, the weight of that.
        T: the temperature of distillation.
        kd: `map` softens both (MAP's eq. 11); `fedrepo`, as the authors' code, the teacher alone.
        agg: whether updates count the same, or by their number of examples.
    """

    name: ClassVar[str] = "fedphp"
    keeps: ClassVar[Mapping[str, Follows]] = {"hpm": "training", "z": "training"}
    mu: float = 0.9
    turns: int = 0
    transfer: Literal["kd", "mmd"] = "kd"
    lam: float = 0.01
    T: float = 4.0
    kd: Literal["map", "fedrepo"] = "map"
    agg: Aggregation = "uniform"

    def __post_init__(self) -> None:
        self.require(0 <= self.mu <= 1, "mu must lie between 0 and 1")
        self.require(self.turns >= 0, "turns must be at least 0")
        self.require(0 <= self.lam <= 1, "lam must lie between 0 and 1")
        self.require(self.T > 0, "T must be above 0")

    def objective(self, r: Round, out: Output, batch: Batch) -> Objective:
        if "hpm" not in r.private or not self.lam:  # the first participation: nobody to learn from
            return Objective()
        if "teacher" not in r.memo:
            r.memo["teacher"] = r.teacher(r.private.tensor("hpm"))
        hpm = r.memo["teacher"](batch)

        def transferred(out: Output, y: Tensor) -> Tensor:
            return self.lam * self._distance(out, hpm)

        return Objective(1 - self.lam, terms=(transferred,))  # (1 - λ) CE + λ L_kt

    def _distance(self, out: Output, hpm: Output) -> Tensor:
        """L_kt, of the network from its teacher."""
        if self.transfer == "mmd":
            return mmd(out.features, hpm.features)
        if self.kd == "fedrepo":
            return ops.soft_cross_entropy(out.logits, (hpm.logits / self.T).softmax(1))
        return ops.distillation(out.logits, hpm.logits, self.T)

    def finish(self, r: Round) -> Finish:
        return self.inherit(r, r.model)

    def inherit(self, r: Round, local: Tensor) -> Finish:
        """ψ_p ← μ_z ψ_p + (1 - μ_z) ψ̂, running statistics included; then z counts one more."""
        z = int(r.private.number("z"))
        hpm = local
        if "hpm" in r.private:
            hpm = r.private.tensor("hpm").clone()
            ops.ema_(hpm, local, self.keeping(z, self.turns or r.turns))
        return Finish(private={"hpm": hpm, "z": z + 1})

    def keeping(self, z: int, expected: int) -> float:
        """μ_z: grows with the times that the device took part, up to μ at the expected number."""
        return self.mu * min(z / expected, 1.0)

    def personal(self, r: Round) -> Tensor:
        return r.private.tensor("hpm")

    def weight(self, scalars: Mapping[str, float]) -> float:
        return scalars["examples"] if self.agg == "n" else 1.0
