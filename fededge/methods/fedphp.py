"""FedPHP: Li et al. 2021, "FedPHP: Federated personalization with inherited private models"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge import ops
from fededge._internal.lazy_torch import Tensor, nn
from fededge.method.base import Batch, Finish, Follows, Method, Objective, Output, TurnView
from fededge.method.feature_losses import check_features, mmd
from fededge.methods.fedrs import Aggregation

__all__ = ["FedPHP"]


@dataclass(frozen=True)
class FedPHP(Method):
    """Train with an inherited private model ψ_p, the moving average of local models, as teacher.

    Attributes:
        mu: the largest momentum of ψ_p; smaller in the first turns.
        turns: Q · T, the expected number of a device's turns; 0: as the run expects.
        transfer: knowledge transfer from ψ_p by its probabilities (`kd`) or features (`mmd`).
        lam: λ, the weight of the transfer.
        T: the temperature of distillation.
        kd: `map` softens both (MAP's eq. 11); `fedrepo`, as the authors' code, the teacher alone.
        agg: the weight of an update: uniform, or its number of examples.
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

    def needs(self, net: nn.Module) -> None:
        if self.transfer == "mmd":
            check_features(net, self.name)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        if "hpm" not in r.private or not self.lam:  # the first turn has no teacher
            return Objective()
        if "teacher" not in r.memo:
            r.memo["teacher"] = r.teacher(r.private.tensor("hpm"))
        hpm = r.memo["teacher"](batch)

        def transferred(out: Output, y: Tensor) -> Tensor:
            return self.lam * self._distance(out, hpm)

        return Objective(1 - self.lam, terms=(transferred,))  # (1 - λ) CE + λ L_kt

    def by_example(self) -> bool:
        return self.transfer != "mmd"  # MMD compares the examples of a batch with each other

    def _distance(self, out: Output, hpm: Output) -> Tensor:
        """Return L_kt, the distance of the network from its teacher."""
        if self.transfer == "mmd":
            return mmd(out.features, hpm.features)
        if self.kd == "fedrepo":
            return ops.soft_cross_entropy(out.logits, (hpm.logits / self.T).softmax(1))
        return ops.distillation(out.logits, hpm.logits, self.T)

    def finish(self, r: TurnView) -> Finish:
        return self.inherit(r, r.model)

    def inherit(self, r: TurnView, local: Tensor) -> Finish:
        """Set ψ_p ← μ_z ψ_p + (1 - μ_z) ψ̂, running statistics included, and z ← z + 1."""
        z = int(r.private.number("z"))
        hpm = local
        if "hpm" in r.private:
            hpm = r.private.tensor("hpm").clone()
            ops.ema_(hpm, local, self.mu_z(z, self.turns or r.turns))
        return Finish(private={"hpm": hpm, "z": z + 1})

    def mu_z(self, z: int, expected: int) -> float:
        """Return μ_z, which grows with the device's turns z, up to μ at the expected number."""
        return self.mu * min(z / expected, 1.0)

    def personal(self, r: TurnView) -> Tensor:
        return r.private.tensor("hpm")

    def weight(self, scalars: Mapping[str, float]) -> float:
        return scalars["examples"] if self.agg == "n" else 1.0
