"""A thousand seeded schedules of faults: nothing acknowledged is lost, and the rounds end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.faults.schedules import FAULTS, KINDS, run_seed

SEEDS = 1000
PARTS = 20
HOSTILE = list(KINDS).index("one is hostile")
ALL_AT_ONCE = len(KINDS) * list(FAULTS).index("all at once")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What a service logs under faults is not read here, and takes a third of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_invariant_breaks(part: int) -> None:
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        run_seed(seed)


def test_the_faults_really_happen() -> None:
    counts: Counter[str] = Counter()
    for schedule in range(len(FAULTS)):
        for kind in (1, HOSTILE, len(KINDS) - 1):
            counts += run_seed(schedule * len(KINDS) + kind)
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
        "folded",
        "refused",
    }


def test_a_seed_fixes_the_run() -> None:
    one: list[str] = []
    two: list[str] = []
    for lines in (one, two):
        run_seed(ALL_AT_ONCE, lines.append)
    assert one == two
    assert len(one) > 100
