"""A thousand seeded schedules of faults: nothing acknowledged is lost, and the rounds end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.faults.schedules import (
    EVERY,
    FAULTS,
    KINDS,
    hostile_seeds,
    run_seed,
)

SEEDS = 1000
PARTS = 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_invariant_breaks(part: int) -> None:
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        run_seed(seed)


def of_each(kind: str) -> Iterator[int]:
    """A seed of this kind with each of the schedules."""
    turns = (len(KINDS) * i + list(KINDS).index(kind) for i in range(len(FAULTS)))
    return (turn + turn // (EVERY - 1) for turn in turns)


def test_the_faults_really_happen() -> None:
    counts: Counter[str] = Counter()
    for kind in ("all, rounded", "three, compressed", "buffers of two, updates with their reports"):
        for seed in of_each(kind):
            counts += run_seed(seed)
    assert counts.keys() >= {
        "kill",
        "power cut",
        "kill between commands",
        "kill at a write",
        "message lost",
        "message doubled",
        "connection lost",
        "partition",
        "broker restart",
        "broker restart without memory",
        "disk full",
        "damaged file",
        "clock leap",
        "rest",
        "order",
        "folded",
        "an update waits for its group",
        "a group of several",
    }


def test_hostile_devices_are_believed_refused_and_refuted() -> None:
    counts: Counter[str] = Counter()
    for seed in hostile_seeds(6):
        counts += run_seed(seed)
    assert counts.keys() >= {"hostile", "believed", "refused"}
    assert counts["hostile"] > 100


@pytest.mark.parametrize("seed", [*of_each("all"), *hostile_seeds(3)][-4:])
def test_a_seed_fixes_the_run(seed: int) -> None:
    one: list[str] = []
    two: list[str] = []
    for lines in (one, two):
        run_seed(seed, lines.append)
    assert one == two
    assert len(one) > 100
