"""The fault schedules and the kinds of federation that the seeds run through."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fededge.config import RobustConfig, RolloutConfig, RoundsConfig, TransferConfig
from tests.faults.oracle import BrokenError, Oracle
from tests.faults.world import NONE, Faults, Kind, World

__all__ = [
    "EVERY",
    "FAULTS",
    "HOSTILE_FAULTS",
    "HOSTILE_KINDS",
    "KINDS",
    "SCHEDULED_KINDS",
    "at_peace",
    "first_break",
    "hostile_seeds",
    "run_scheduled",
    "run_seed",
]

STAGES = RolloutConfig(stages=(0.5, 1.0), soak=30.0)
EVERY = 7
"""Every n-th seed has hostile devices."""


TURN = (5.0, 15.0)
"""Seconds that a turn takes where devices are hostile."""

HOURS = tuple(f"{hour:02d}:03-{hour + 1:02d}:00" for hour in range(24))
"""All but the first three minutes of every hour, in time zones of whole hours."""

WHOLE = 1 << 20
"""Bytes of a chunk that holds a whole update, which then travels with its report."""

FACTOR = 6.0
"""The rounds of a run may take this many times as long as without hostile devices."""


def kind(
    encoding: str = "float32",
    robust: RobustConfig | None = None,
    method: str = "scaffold",
    chunk_bytes: int = 1024,
    **rounds: Any,
) -> Kind:
    """Four honest devices, three rounds; an update has several chunks, if they are not larger."""
    config = {
        "method": method,
        "rounds": RoundsConfig(**{"count": 3, "deadline": 60.0, **rounds}),
        "transfer": TransferConfig(chunk_bytes=chunk_bytes, encoding=encoding),
        "robust": robust or RobustConfig(),
    }
    return Kind(config)


def besieged(
    devices: int,
    hostile: int,
    method: str,
    encoding: str = "float32",
    robust: RobustConfig | None = None,
    **rounds: Any,
) -> Kind:
    """Four rounds of a fleet with hostile devices; each needs an honest one more than those."""
    rules = {"count": 4, "deadline": 120.0, "min_devices": devices - hostile, "quorum": hostile + 1}
    made = kind(encoding, robust, method, **{**rules, "quarantine_seconds": 1e9, **rounds})
    return replace(made, devices=devices, hostile=hostile, turn=TURN)


def in_stages(made: Kind) -> Kind:
    return replace(made, config={**made.config, "rollout": STAGES})


KINDS = {
    "all": kind(min_devices=4, quorum=4),
    "all, rounded": kind("bfloat16+delta", min_devices=4, quorum=4),
    "all, the nearest of them, updates with their reports": kind(
        "float16+zstd",
        RobustConfig(clip_norm=1.0, combine="krum"),
        chunk_bytes=WHOLE,
        min_devices=4,
        quorum=4,
    ),
    "three, compressed": kind(
        "int8+delta+zstd", min_devices=3, participants=3, over_select=1.3, quorum=2
    ),
    "any, models in stages": in_stages(kind(min_devices=1, share=0.8, selection="round-robin")),
    "any, late ones folded": kind(
        "float16+delta", min_devices=3, participants=3, over_select=1.3, late="fold", grace=5.0
    ),
    "buffers of two, updates with their reports": kind(
        mode="buffered", buffer=2, min_devices=2, chunk_bytes=WHOLE
    ),
}
SCHEDULED_KINDS = {
    "all": kind(min_devices=4, quorum=4, interval=40.0, hours=HOURS),
    "all, rounded": kind("bfloat16+delta", min_devices=4, quorum=4, interval=300.0),
    "all, the nearest of them, updates with their reports": kind(
        "float16+zstd",
        RobustConfig(clip_norm=1.0, combine="krum"),
        chunk_bytes=WHOLE,
        min_devices=4,
        quorum=4,
        hours=HOURS,
    ),
}
"""Kinds of the same names, whose rounds have a schedule; it must not change the last version."""

FIXED = frozenset(name for name in KINDS if name.startswith("all"))
"""Kinds in which all devices take part in every round: faults do not change the last version."""

HOSTILE_KINDS = {
    "fedavg": besieged(4, 1, "fedavg"),
    "scaffold": besieged(6, 2, "scaffold", "float16+delta"),
    "fednova": besieged(4, 1, "fednova", "int8+delta+zstd", quarantine_after=1),
    "fedadam": besieged(6, 2, "fedadam", "bfloat16"),
    "fedavgm, models in stages": in_stages(besieged(4, 1, "fedavgm")),
    "fedavg, some are asked, updates with their reports": besieged(
        6, 2, "fedavg", participants=3, over_select=1.3, selection="recency", chunk_bytes=WHOLE
    ),
    "median": besieged(6, 2, "fedavg", "float16+zstd", RobustConfig(combine="median")),
    "krum": besieged(6, 2, "scaffold", robust=RobustConfig(combine="krum"), quorum=4),
    "trimmed mean": besieged(
        6, 2, "fedadam", robust=RobustConfig(combine="trimmed-mean", trim=0.34)
    ),
    "scaffold, late ones folded": besieged(
        6, 2, "scaffold", "float16+delta", participants=4, late="fold", grace=5.0
    ),
    "fedavgm, buffers of three": besieged(
        6, 2, "fedavgm", mode="buffered", buffer=3, max_staleness=2
    ),
    "fedavg, may go back": besieged(6, 2, "fedavg", robust=RobustConfig(roll_back=True)),
}
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
        rest=0.01,
    ),
    "disks are full at times": Faults(fill_disk=0.03, free_disk=0.2),
    "boxes rest at times": Faults(rest=0.03, lose=0.02, double=0.02, kill=0.003),
    "an operator gives orders": Faults(
        steps=600, order=0.03, kill=0.005, kill_at_boundary=0.003, lose=0.02, double=0.02
    ),
}

HOSTILE_FAULTS = {
    "nothing else goes wrong": NONE,
    "processes die": Faults(steps=200, kill=0.01, kill_at_boundary=0.003),
    "messages are lost, doubled, overtaken": Faults(steps=200, lose=0.05, double=0.05, reorder=0.3),
    "boxes rest at times": Faults(steps=200, rest=0.02),
    "all at once": replace(FAULTS["all at once"], steps=200),
}


def hostile_seeds(count: int) -> range:
    """The first so many seeds with hostile devices."""
    return range(EVERY - 1, EVERY * count, EVERY)


def run_seed(seed: int, trace: Callable[[str], None] | None = None) -> Counter[str]:
    """One run, its kind and faults chosen by the seed; counts what happened in it.

    Raises:
        BrokenError: if an invariant did not hold.
    """
    if seed % EVERY == EVERY - 1:
        return run_besieged(seed, trace)
    name, schedule = chosen(KINDS, FAULTS, seed - seed // EVERY)
    world = World(seed, KINDS[name], FAULTS[schedule], trace)
    world.tell(f"seed {seed}: {name}; {schedule}")
    last = world.run()
    fixed = name in FIXED and not FAULTS[schedule].order
    if fixed and last != undisturbed(name):
        raise BrokenError(f"the last version is {last}, undisturbed it is {undisturbed(name)}")
    check_turns(world.oracle, FAULTS[schedule])
    return counted(world)


def run_scheduled(seed: int, trace: Callable[[str], None] | None = None) -> Counter[str]:
    """One run whose rounds have a schedule; an operator's orders may change its result."""
    name, schedule = chosen(SCHEDULED_KINDS, FAULTS, seed)
    world = World(seed, SCHEDULED_KINDS[name], FAULTS[schedule], trace)
    last = world.run()
    if not FAULTS[schedule].order and last != undisturbed(name):
        raise BrokenError(f"the last version is {last}, undisturbed it is {undisturbed(name)}")
    check_turns(world.oracle, FAULTS[schedule])
    return counted(world)


def first_break(seeds: range, *errors: type[Exception]) -> str:
    """Run the seeds until one raises one of these errors; return its text, empty if none does."""
    for seed in seeds:
        try:
            run_seed(seed)
        except errors as error:
            return str(error)
    return ""


def run_besieged(seed: int, trace: Callable[[str], None] | None) -> Counter[str]:
    """A run with hostile devices."""
    name, schedule = chosen(HOSTILE_KINDS, HOSTILE_FAULTS, seed // EVERY)
    made, faults = HOSTILE_KINDS[name], HOSTILE_FAULTS[schedule]
    # Where the quorum is all honest devices, one that backs off after many rests costs a deadline.
    waits = made.config["rounds"].deadline if faults.rest else 0.0
    world = World(seed, made, faults, trace, FACTOR * at_peace(name) + waits)
    world.tell(f"seed {seed}: {name}, {made.hostile} of {made.devices} are hostile; {schedule}")
    world.run()
    check_turns(world.oracle, faults)
    return counted(world)


def chosen(
    kinds: Mapping[str, Kind], schedules: Mapping[str, Faults], turn: int
) -> tuple[str, str]:
    """One of the kinds after the other, with one of the schedules after the other."""
    return [*kinds][turn % len(kinds)], [*schedules][turn // len(kinds) % len(schedules)]


@functools.cache
def undisturbed(name: str) -> str:
    """The last version of a run in which nothing goes wrong."""
    return World(0, KINDS[name]).run()


@functools.cache
def at_peace(name: str) -> float:
    """Seconds that the honest devices of a kind take alone."""
    made = HOSTILE_KINDS[name]
    world = World(0, replace(made, devices=made.devices - made.hostile, hostile=0))
    world.run()
    return world.now


def check_turns(oracle: Oracle, faults: Faults) -> None:
    damaging = faults.rot or faults.fill_disk  # a piece may not be kept
    if oracle.torn and not damaging:
        raise BrokenError(f"put together wrongly: {oracle.torn}")
    if oracle.repeated and not faults.rot and not faults.order:
        raise BrokenError(f"trained more than once: {oracle.repeated}")
    if oracle.went_back and not faults.fill_disk:  # a device whose disk is full says that it failed
        raise BrokenError(f"the run went back to {oracle.went_back}")


def counted(world: World) -> Counter[str]:
    oracle = world.oracle
    return world.counts + Counter(
        merges=len(oracle.merges),
        acknowledged=len(oracle.acknowledged),
        refused=len(oracle.refused),
        folded=oracle.folded,
        believed=sum(d in oracle.hostile for merge in oracle.merges for d in merge.updates),
    )
