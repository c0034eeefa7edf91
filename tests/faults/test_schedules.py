"""Rounds with a schedule under faults: none begins untimely, and the result is the same."""

from __future__ import annotations

import pytest

from fededge_server.machine.rounds.schedule import Schedule
from tests.faults.oracle import BrokenError
from tests.faults.schedules import FAULTS, SCHEDULED_KINDS, run_scheduled

SEEDS = 3 * len(FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_no_round_begins_untimely_and_the_last_version_is_the_undisturbed_one(part: int) -> None:
    for seed in range(part, SEEDS, 3):
        run_scheduled(seed)


@pytest.mark.parametrize("seed", range(len(SCHEDULED_KINDS)))
def test_a_round_that_begins_untimely_is_noticed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_scheduled(seed)
    monkeypatch.setattr(Schedule, "reason", lambda self, now: "")
    with pytest.raises(BrokenError, match=r"round \d begins: (it is|\d+ s after the version)"):
        run_scheduled(seed)
