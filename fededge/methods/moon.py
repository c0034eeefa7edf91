"""MOON: Li, He and Song 2021, "Model-contrastive federated learning"."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge import models
from fededge._internal.lazy_torch import Tensor, nn
from fededge.method.base import Batch, Finish, Follows, Method, Objective, Output, Round

__all__ = ["Moon", "contrastive_loss"]

SHORTEST = 1e-12


@dataclass(frozen=True)
class Moon(Method):
    """Keep the features near the global model's and away from the device's previous ones.

    L = CE + μ ℓ_con, on the features before the head: the projection's outputs where the network
    ends in one (`lfd-cnn`).

    Attributes:
        mu: weight of ℓ_con.
        T: temperature of the similarities.
        first: a device's first previous model: a net of its `own` as yet untrained (the authors'
            code), or the one that it `received`, which makes ℓ_con a constant in that turn.
    """

    name: ClassVar[str] = "moon"
    keeps: ClassVar[Mapping[str, Follows]] = {"previous": "training"}
    mu: float = 1.0
    T: float = 0.5
    first: Literal["own", "received"] = "own"

    def __post_init__(self) -> None:
        self.require(self.mu >= 0, "mu must be at least 0")
        self.require(self.T > 0, "T must be above 0")

    def objective(self, r: Round, out: Output, batch: Batch) -> Objective:
        if not self.mu:
            return Objective()
        if "glob" not in r.memo:
            r.memo.update(glob=r.teacher(r.received), prev=r.teacher(self._previous(r)))
        z_glob, z_prev = (r.memo[name](batch).features for name in ("glob", "prev"))

        def contrast(out: Output, y: Tensor) -> Tensor:
            return self.mu * contrastive_loss(out.features, z_glob, z_prev, self.T)

        return Objective(terms=(contrast,))

    def finish(self, r: Round) -> Finish:
        return Finish(private={"previous": r.model} if r.steps else {})

    def _previous(self, r: Round) -> Tensor:
        """The model that this device sent last; at first, as the option says."""
        if "previous" in r.private:
            return r.private.tensor("previous")
        if self.first == "received":
            return r.received
        digest = hashlib.sha256(f"{r.seed}/{r.device}/{self.name}".encode()).digest()
        net = r.net.clone().to("cpu")
        models.redraw_(net.module, int.from_bytes(digest[:7], "little"))
        return net.vector


def contrastive_loss(z: Tensor, z_glob: Tensor, z_prev: Tensor, T: float) -> Tensor:
    """The batch mean of -log(e^(c⁺/T) / (e^(c⁺/T) + e^(c⁻/T))), the cosines to the two others."""
    return -nn.functional.logsigmoid((_cosines(z, z_glob) - _cosines(z, z_prev)) / T).mean()


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Row by row; a zero vector has no direction: its cosine is zero, and it gets no gradient."""
    lengths: Tensor = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(1) / lengths.masked_fill(lengths < SHORTEST, math.inf)
