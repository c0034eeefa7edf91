"""The fault schedules and the kinds of federation that the seeds run through."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from fededge.config import RobustConfig, RolloutConfig, RoundsConfig, TransferConfig
from tests.faults.oracle import BrokenError
from tests.faults.world import Faults, World

__all__ = ["run_seed", "undisturbed"]

DEVICES = 4
ROUNDS = 3


def config(
    encoding: str = "float32", robust: RobustConfig | None = None, **rounds: Any
) -> dict[str, Any]:
    return {
        "rounds": RoundsConfig(count=ROUNDS, deadline=60.0, **rounds),
        "transfer": TransferConfig(chunk_bytes=1024, encoding=encoding),
        "robust": robust or RobustConfig(),
    }


KINDS = {
    "all": config(min_devices=DEVICES, quorum=DEVICES),
    "all, rounded": config("bfloat16+delta", min_devices=DEVICES, quorum=DEVICES),
    "all, the nearest of them": config(
        "float16+zstd",
        RobustConfig(clip_norm=1.0, combine="krum"),
        min_devices=DEVICES,
        quorum=DEVICES,
    ),
    "three, compressed": config(
        "int8+delta+zstd", min_devices=3, participants=3, over_select=1.3, quorum=2
    ),
    "any, models in stages": {
        **config(min_devices=1, share=0.8, selection="round-robin"),
        "rollout": RolloutConfig(stages=(0.5, 1.0), soak=30.0),
    },
    "one is hostile": config(
        "float32",
        RobustConfig(max_norm=100.0, combine="krum", byzantine=0),
        min_devices=3,
        quorum=3,
        selection="recency",
        quarantine_after=1,
        quarantine_seconds=1e9,
    ),
    "any, late ones folded": config(
        "float16+delta", min_devices=3, participants=3, over_select=1.3, late="fold", grace=5.0
    ),
    "buffers of two": config(mode="buffered", buffer=2, min_devices=2),
}
HOSTILE = "device-3"
FIXED = frozenset({"all", "all, rounded", "all, the nearest of them"})
"""Where all take part in every round: the last version does not depend on what went wrong."""

FAULTS = {
    "processes die": Faults(kill=0.01, kill_at_boundary=0.003),
    "processes die between commands": Faults(kill_at_boundary=0.02),
    "messages are lost, doubled, overtaken": Faults(lose=0.05, double=0.05, reorder=0.3),
    "links break": Faults(reconnect=0.02, partition=0.005, restart_broker=0.005, lose=0.02),
    "boxes misbehave": Faults(fill_disk=0.004, leap=0.01, slow=0.5, kill=0.003),
    "files rot": Faults(steps=1000, kill=0.02, rot=1.0),
    "all at once": Faults(
        lose=0.02,
        double=0.03,
        reorder=0.1,
        kill=0.004,
        kill_at_boundary=0.003,
        reconnect=0.005,
        partition=0.002,
        restart_broker=0.002,
        fill_disk=0.001,
        leap=0.002,
        slow=0.3,
    ),
}


@functools.cache
def undisturbed(kind: str) -> str:
    """The last version of a run in which nothing goes wrong."""
    return World(0, DEVICES, KINDS[kind]).run()


def run_seed(seed: int, trace: Callable[[str], None] | None = None) -> Counter[str]:
    """One run, its kind and faults chosen by the seed; counts what happened in it.

    Raises:
        BrokenError: if an invariant did not hold.
    """
    kinds, schedules = list(KINDS), list(FAULTS)
    kind = kinds[seed % len(kinds)]
    schedule = schedules[seed // len(kinds) % len(schedules)]
    hostile = HOSTILE if kind == "one is hostile" else ""
    world = World(seed, DEVICES, KINDS[kind], FAULTS[schedule], trace, hostile)
    world.tell(f"seed {seed}: {kind} of {DEVICES} devices; {schedule}")
    last = world.run()
    expected = undisturbed(kind)
    if kind in FIXED and last != expected:
        raise BrokenError(f"the last version is {last}, undisturbed it is {expected}")
    oracle = world.oracle
    damaging = FAULTS[schedule].rot or FAULTS[schedule].fill_disk  # a piece may not be kept
    if oracle.torn and not damaging:
        raise BrokenError(f"put together wrongly: {oracle.torn}")
    if oracle.repeated and not FAULTS[schedule].rot:
        raise BrokenError(f"trained more than once: {oracle.repeated}")
    return world.counts + Counter(
        merges=len(oracle.merges),
        acknowledged=len(oracle.acknowledged),
        refused=len(oracle.refused),
        folded=oracle.folded,
    )
