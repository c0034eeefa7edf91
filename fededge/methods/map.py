"""MAP: Li et al., "Model Aggregation and Personalization in Federated Learning with Incomplete
Classes"; with `scaffold`, which then corrects the first stage only, it is ScaMAP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fededge.method.base import Batch, Finish, Objective, Output, Phase, TurnView
from fededge.methods.fedphp import FedPHP
from fededge.methods.fedrs import FedRS

__all__ = ["Map"]


@dataclass(frozen=True)
class Map(FedPHP, FedRS):
    """Two stages of half the steps each: FedRS for the global model, FedPHP for the personal one.

    The model after the first stage is uploaded. The second continues from it, with new momentum,
    and its result enters the inherited private model, which never leaves the device.
    """

    name: ClassVar[str] = "map"
    phase_names: ClassVar[tuple[str, ...]] = ("first", "second")
    aside_names: ClassVar[tuple[str, ...]] = ("second",)

    def __post_init__(self) -> None:
        FedRS.__post_init__(self)
        FedPHP.__post_init__(self)

    def phases(self, r: TurnView) -> Sequence[Phase]:
        return Phase("first", 0.5), Phase("second", 0.5, aside=True)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        stage = FedRS if r.phase.name == "first" else FedPHP
        return stage.objective(self, r, out, batch)

    def finish(self, r: TurnView) -> Finish:
        return self.inherit(r, r.ends["second"])
