"""Ditto: Li et al. 2021, "Ditto: Fair and robust federated learning through personalization";
with `fedrs`, which then bends the sent model's training only, it is DittoRS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Affine, Finish, Follows, Method, Phase, Round

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(Method):
    """Beside FedAvg each device trains a model v of its own: F(v) + λ/2 · ‖v - w_t‖².

    Neither looks at the other during a round, so that v has a phase to itself, of as many steps,
    where the authors' code takes turns batch by batch.
    """

    name: ClassVar[str] = "ditto"
    keeps: ClassVar[Mapping[str, Follows]] = {"v": "training"}
    phase_names: ClassVar[tuple[str, ...]] = ("global", "personal")
    aside_names: ClassVar[tuple[str, ...]] = ("personal",)
    lam: float = 1.0

    def __post_init__(self) -> None:
        self.require(self.lam >= 0, "lam must be at least 0")

    def phases(self, r: Round) -> Sequence[Phase]:
        v = r.private.tensor("v") if "v" in r.private else r.received
        return Phase("global"), Phase("personal", epochs=r.hyper.epochs, aside=True, start=v)

    def pull(self, r: Round) -> Affine | None:  # v ← v - η (∇F(v) + λ (v - w_t))
        personal = r.phase.name == "personal"
        return Affine(kappa=self.lam, anchor=r.received) if personal and self.lam else None

    def finish(self, r: Round) -> Finish:
        return Finish(private={"v": r.ends["personal"]})

    def personal(self, r: Round) -> Tensor:
        return r.private.tensor("v")
