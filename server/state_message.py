"""The retained state: what the federation's devices are told about the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fededge._internal.plain_text import plain
from fededge.config import CoordinatorConfig
from fededge.wire.messages import Manifest, State, Training
from fededge_server.machine.rounds.rollout import Staging
from fededge_server.machine.rounds.round_state import RoundsView
from fededge_server.machine.rounds.rounds import Rounds
from fededge_server.model.versions import Versions

__all__ = ["StateMessage"]

FULL = "the coordinator's disk is full: updates are not taken until there is space"


@dataclass
class StateMessage:
    """Describes the run as it stands. `problem` is what an operator should know of."""

    config: CoordinatorConfig
    rounds: Rounds
    versions: Versions
    staging: Staging | None
    clock: Callable[[], float]
    problem: str = ""

    def describe(self, manifest: Manifest) -> State:
        """The state now; `manifest` is that of the current model."""
        config, versions = self.config, self.versions
        now = self.clock()
        view = self.rounds.view(now)
        return State(
            federation=config.federation,
            run=view.run,
            seed=config.seed,
            round=view.round,
            rounds=config.rounds.count,
            phase="waiting" if view.phase == "merging" else view.phase,
            version=versions.progress.version,
            sha256=versions.progress.sha256,
            layout=versions.layout.hash,
            method=str(versions.method),
            training=Training(**msgspec.structs.asdict(config.training)),
            model=versions.spec,
            manifest=manifest,
            deadline=_left(view, now),
            lease=config.rounds.lease,
            asked=view.asked,
            accuracy=versions.progress.accuracy,
            files=versions.method.files,
            encoding=str(versions.encoding),
            turns=config.rounds.expected_turns,
            rollout=None if self.staging is None else self.staging.rollout,
            problem=FULL if view.full else plain(self.problem),
            quarantined=view.quarantined,
            restored=versions.progress.restored,
            resting=view.resting,
            renewed=versions.renewed,
        )


def _left(view: RoundsView, now: float) -> float:
    """Seconds until the round's deadline or the end of the rest; 0 if there is none."""
    end = {"open": view.deadline, "resting": view.rests_until}.get(view.phase, math.inf)
    return end - now if end < math.inf else 0.0
