"""Fine-tuning before the training: FedALA's baselines FedAvg-C and FedProx-C.

`finetune` is a layer for any method: `scaffold+finetune(epochs=5)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Hyper, Method, Phase, TurnView
from fededge.methods.fedprox import FedProx

__all__ = ["FedAvgC", "FedProxC", "Finetune"]


@dataclass(frozen=True)
class Finetune(Method):
    """Fine-tune for some epochs first: the result is the personal model, and training continues.

    Other layers act in both phases, `tune` and `train`; `fedprox@train+finetune` leaves `tune` out.
    """

    name: ClassVar[str] = "finetune"
    phase_names: ClassVar[tuple[str, ...]] = ("tune", "train")
    epochs: int = 10

    def __post_init__(self) -> None:
        self.require(self.epochs >= 0, "epochs must be at least 0")

    def phases(self, r: TurnView) -> Sequence[Phase]:
        return Phase("tune", epochs=self.epochs), Phase("train")

    def personal(self, r: TurnView) -> Tensor:
        return r.ends["tune"]

    def passes(self, hyper: Hyper) -> int:
        return self.epochs + hyper.epochs


@dataclass(frozen=True)
class FedAvgC(Finetune):
    """FedAvg that fine-tunes the global model before the training."""

    name: ClassVar[str] = "fedavg-c"


@dataclass(frozen=True)
class FedProxC(Finetune, FedProx):
    """FedProx that fine-tunes the global model, by FedProx's objective, before the training."""

    name: ClassVar[str] = "fedprox-c"

    def __post_init__(self) -> None:
        Finetune.__post_init__(self)
        FedProx.__post_init__(self)
