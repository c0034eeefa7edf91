"""MAP: Li et al., "Model Aggregation and Personalization in Federated Learning with Incomplete
Classes"; with `scaffold`, which then corrects the first stage only, it is ScaMAP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fededge.method.base import Batch, Finish, Objective, Output, Phase, Round
from fededge.methods.fedphp import FedPHP
from fededge.methods.fedrs import FedRS

__all__ = ["Map"]


@dataclass(frozen=True)
class Map(FedPHP, FedRS):
    """Half of the steps for the federation (FedRS), half for the device itself (FedPHP).

    The model after the first half is sent. The second goes on from there with new momentum, and
    ends in the inherited private model, which stays at home.
    """

    name: ClassVar[str] = "map"
    phase_names: ClassVar[tuple[str, ...]] = ("first", "second")
    aside_names: ClassVar[tuple[str, ...]] = ("second",)

    def __post_init__(self) -> None:
        FedRS.__post_init__(self)
        FedPHP.__post_init__(self)

    def phases(self, r: Round) -> Sequence[Phase]:
        return Phase("first", 0.5), Phase("second", 0.5, aside=True)

    def objective(self, r: Round, out: Output, batch: Batch) -> Objective:
        stage = FedRS if r.phase.name == "first" else FedPHP
        return stage.objective(self, r, out, batch)

    def finish(self, r: Round) -> Finish:
        return self.inherit(r, r.ends["second"])
