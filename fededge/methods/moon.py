"""MOON: Li, He and Song 2021, "Model-contrastive federated learning"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge import models
from fededge._internal.lazy_torch import Tensor, nn
from fededge.method.base import Batch, Finish, Follows, Method, Objective, Output, TurnView
from fededge.method.feature_losses import check_features

__all__ = ["Moon", "contrastive_loss"]

SHORTEST = 1e-12


@dataclass(frozen=True)
class Moon(Method):
    """Pull the features towards the global model's and away from the device's previous model's.

    L = CE + μ ℓ_con, on the features before the head; in a network with a projection (`lfd-cnn`)
    these are its outputs.

    Attributes:
        mu: weight of ℓ_con.
        T: temperature of the similarities.
        first: the previous model in a device's first turn: its `own` untrained network (the
            authors' code), or the `received` model, which makes ℓ_con constant in that turn.
    """

    name: ClassVar[str] = "moon"
    keeps: ClassVar[Mapping[str, Follows]] = {"previous": "training"}
    mu: float = 1.0
    T: float = 0.5
    first: Literal["own", "received"] = "own"

    def __post_init__(self) -> None:
        self.require(self.mu >= 0, "mu must be at least 0")
        self.require(self.T > 0, "T must be above 0")

    def needs(self, net: nn.Module) -> None:
        if self.mu:
            check_features(net, self.name)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        if not self.mu:
            return Objective()
        if "glob" not in r.memo:
            r.memo.update(glob=r.teacher(r.received), prev=r.teacher(self._previous(r)))
        z_glob, z_prev = (r.memo[name](batch).features for name in ("glob", "prev"))

        def contrast(out: Output, y: Tensor) -> Tensor:
            return self.mu * contrastive_loss(out.features, z_glob, z_prev, self.T)

        return Objective(terms=(contrast,))

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"previous": r.model} if r.steps else {})

    def _previous(self, r: TurnView) -> Tensor:
        """Return the model that this device uploaded last; in its first turn, as `first` says."""
        if "previous" in r.private:
            return r.private.tensor("previous")
        if self.first == "received":
            return r.received
        net = r.net.clone().to("cpu")
        models.redraw_(net.module, r.device_seed)
        return net.vector.to(r.model.device)


def contrastive_loss(z: Tensor, z_glob: Tensor, z_prev: Tensor, T: float) -> Tensor:
    """Return the mean of -log(e^(c⁺/T) / (e^(c⁺/T) + e^(c⁻/T))); c⁺, c⁻: cosines to the two."""
    return -nn.functional.logsigmoid((_cosines(z, z_glob) - _cosines(z, z_prev)) / T).mean()


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of each row; that of a zero vector is zero, without a gradient."""
    lengths: Tensor = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(1) / lengths.masked_fill(lengths < SHORTEST, math.inf)
