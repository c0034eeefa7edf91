"""What the world is told of a federation: its retained state."""

from __future__ import annotations

import msgspec

from fededge._internal.plain_text import plain
from fededge.config import CoordinatorConfig
from fededge.wire.messages import Manifest, State, Training
from fededge_server.machine.rollout import Staging
from fededge_server.machine.rounds import Rounds
from fededge_server.versions import Versions

__all__ = ["describe"]

FULL = "the coordinator's disk is full: updates are not taken until there is space"


def describe(
    config: CoordinatorConfig,
    machine: Rounds,
    versions: Versions,
    manifest: Manifest,
    staging: Staging | None,
    problem: str,
    now: float,
) -> State:
    """Where the federation stands at this moment."""
    return State(
        federation=config.federation,
        run=machine.facts.run,
        seed=config.seed,
        round=machine.round,
        rounds=config.rounds.count,
        phase="waiting" if machine.phase == "merging" else machine.phase,
        version=versions.progress.version,
        sha256=versions.progress.sha256,
        layout=machine.facts.layout,
        method=str(versions.method),
        training=Training(**msgspec.structs.asdict(config.training)),
        model=versions.spec,
        manifest=manifest,
        deadline=machine.deadline - now if machine.phase == "open" else 0.0,
        lease=config.rounds.lease,
        asked=len(machine.invited),
        accuracy=versions.progress.accuracy,
        files=versions.method.files,
        encoding=str(versions.encoding),
        turns=config.rounds.expected_turns,
        rollout=None if staging is None else staging.rollout,
        problem=FULL if machine.full else plain(problem),
        quarantined=len(machine.eligibility.quarantined),
        restored=versions.progress.restored,
    )
