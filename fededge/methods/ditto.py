"""Ditto: Li et al. 2021, "Ditto: Fair and robust federated learning through personalization";
with `fedrs`, which then acts on the uploaded model's training only, it is DittoRS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fededge._internal.lazy_torch import Tensor
from fededge.method.base import Affine, Finish, Follows, Method, Phase, TurnView

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, and on each device a personal model v that minimises F(v) + λ/2 · ‖v - w_t‖².

    Within a round w and v are independent: v trains in its own phase, of as many steps. The
    authors' code alternates between them batch by batch.
    """

    name: ClassVar[str] = "ditto"
    keeps: ClassVar[Mapping[str, Follows]] = {"v": "training"}
    phase_names: ClassVar[tuple[str, ...]] = ("global", "personal")
    aside_names: ClassVar[tuple[str, ...]] = ("personal",)
    lam: float = 1.0

    def __post_init__(self) -> None:
        self.require(self.lam >= 0, "lam must be at least 0")

    def phases(self, r: TurnView) -> Sequence[Phase]:
        v = r.private.tensor("v") if "v" in r.private else r.received
        return Phase("global"), Phase("personal", epochs=r.hyper.epochs, aside=True, start=v)

    def pull(self, r: TurnView) -> Affine | None:  # v ← v - η (∇F(v) + λ (v - w_t))
        personal = r.phase.name == "personal"
        return Affine(kappa=self.lam, anchor=r.received) if personal and self.lam else None

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"v": r.ends["personal"]})

    def personal(self, r: TurnView) -> Tensor:
        return r.private.tensor("v")
