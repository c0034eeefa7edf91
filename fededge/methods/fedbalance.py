"""FedBalance: Wang et al., "Federated Skewed Label Learning with Logits Fusion"."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fededge import models
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.method.base import (
    Batch,
    Examples,
    Finish,
    Follows,
    Method,
    Objective,
    Output,
    Step,
    TurnView,
    forward,
)

__all__ = ["FedBalance"]

TEXTS = "fedbalance has weak learners for images only, not for texts: choose another method"


@dataclass(frozen=True)
class FedBalance(Method):
    """Let a private weak learner ψ absorb the device's label skew: CE(φ(x) + α ⊙ ψ(x), y).

    α is the device's label distribution. One backward trains both (eq. 3); only φ is uploaded.

    Attributes:
        weak: the network of ψ.
        persist_psi_momentum: keep ψ's momentum between turns.
        deploy: the personal model: φ + α ⊙ ψ (`fused`), or φ alone (`generic`), which fits the
            device's own labels less.
    """

    name: ClassVar[str] = "fedbalance"
    keeps: ClassVar[Mapping[str, Follows]] = {"psi": "training", "momentum": "training"}
    weak: str = "lenet5"
    persist_psi_momentum: bool = False
    deploy: Literal["fused", "generic"] = "fused"

    def __post_init__(self) -> None:
        known = models.names()
        self.require(self.weak in known, f"weak must be one of {', '.join(known)}")

    def needs(self, net: nn.Module) -> None:
        if models.takes_texts(net):
            raise MethodError(TEXTS)

    def companions(self, r: TurnView) -> Sequence[FlatModel]:
        r.memo.update(phase=r.phase, anew=True)
        return (self._psi(r),)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        if "alpha" not in r.memo:
            r.memo["alpha"] = alpha(r.data).to(out.logits)
            r.memo["weak"] = models.for_training(self._psi(r).module)
        weak = forward(r.memo["weak"], batch.x).logits
        return Objective(added=weak, added_scale=r.memo["alpha"])

    def advance(self, r: TurnView, step: Step) -> Tensor | float:
        loss = step.gradient(step.batch())
        if self.persist_psi_momentum and r.memo.get("phase") is r.phase:
            self._carry_momentum(r)
        step.apply()
        return loss

    def finish(self, r: TurnView) -> Finish:
        kept = {"momentum": r.memo["momentum"]} if "momentum" in r.memo else {}
        return Finish(private={"psi": self._psi(r).vector, **kept})

    def network(self, net: nn.Module, data: Examples) -> nn.Module:
        if self.deploy == "generic":
            return net
        return models.LogitSum(copy.deepcopy(net), self._weak(data))

    def personal(self, r: TurnView) -> Tensor:
        if self.deploy == "generic":
            return r.model
        psi, vector = self._psi(r), r.private.tensor("psi").clone()
        tensors = psi.layout.views(vector)
        a = alpha(r.data).to(vector)
        tensors["head.weight"] *= a[:, None]
        tensors["head.bias"] *= a
        phi_size, psi_size = (_parameters(net) for net in (r.net, psi))
        phi = r.model.to(vector.device)
        # A flat vector holds all parameters before all running statistics.
        return torch.cat([phi[:phi_size], vector[:psi_size], phi[phi_size:], vector[psi_size:]])

    def _psi(self, r: TurnView) -> FlatModel:
        """Return ψ: in training, or from private state, or drawn from this device's seed."""
        if "psi" not in r.memo:
            psi = FlatModel(self._weak(r.data, r.device_seed))
            if "psi" in r.private:
                psi.load(r.private.tensor("psi"))
            r.memo["psi"] = psi.to(r.net.vector.device)
        found: FlatModel = r.memo["psi"]
        return found

    def _weak(self, data: Examples, seed: int = 0) -> nn.Module:
        if data.x.dim() != 4:
            raise MethodError(TEXTS)
        return models.build(self.weak, data.classes, tuple(data.x.shape[1:]), seed)

    def _carry_momentum(self, r: TurnView) -> None:
        """Continue b ← m b + g from the last turn's b: SGD starts at 0, so its first g gets m b."""
        psi = self._psi(r)
        last = r.memo.get("momentum", r.private.get("momentum", 0.0))
        carried = r.hyper.momentum * last + torch.zeros_like(psi.grad)
        r.memo["momentum"] = carried + psi.grad + r.hyper.weight_decay * psi.vector
        if r.memo.pop("anew", False):
            psi.grad += carried


def alpha(data: Examples) -> Tensor:
    """Return the share of each class in the device's labels."""
    return data.counts / max(len(data.y), 1)


def _parameters(net: FlatModel) -> int:
    return sum(entry.size for entry in net.layout.entries if entry.trainable)
