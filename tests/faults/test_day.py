"""Days without an end: nothing breaks, and each planted bug of an operator's event is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fededge_server.machine.events import Command
from fededge_server.machine.fleet.order_effects import EFFECTS, OrderEffects
from fededge_server.machine.fleet.orders import RevokeOrder
from fededge_server.machine.fleet.standings import Standing
from fededge_server.machine.rounds.rounds import Rounds
from fededge_server.store import backup
from tests.faults.day import run_day
from tests.faults.oracle import BrokenError

SEEDS = 5
PLANTED = 20
"""Seeds within which a planted bug must be found, from one that finds it now."""


@pytest.mark.slow
def test_nothing_breaks_in_a_day_of_a_fleet_that_changes() -> None:
    counts: Counter[str] = Counter()
    for seed in range(2, 2 + SEEDS):
        counts += run_day(seed)
    assert counts.keys() >= {"arrival", "departure", "return", "backup", "restore", "rollback"}
    assert counts["merges"] > SEEDS


def test_a_seed_fixes_the_day() -> None:
    one: list[str] = []
    two: list[str] = []
    for lines in (one, two):
        run_day(9, lines.append)
    assert one == two
    assert len(one) > 100


def lose_accepted_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup leaves the spool out: whoever restores it has lost what was acknowledged."""
    monkeypatch.setattr(backup, "_updates", lambda store, copy: {})


def keep_a_revoked_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update of a device that is revoked in mid-round is merged with the others."""

    def effect(self: OrderEffects, order: Any, now: float) -> list[Any]:
        self.rounds.participants.of(order.device).standing = Standing.REVOKED
        return []

    monkeypatch.setitem(EFFECTS, RevokeOrder, effect)


def end_with_the_first_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause has no end."""
    real = Rounds.advance

    def advance(self: Rounds, now: float) -> list[Command]:
        self.__dict__["ever"] = self.__dict__.get("ever") or self.state.paused
        self.state.paused = self.__dict__["ever"]
        return real(self, now)

    monkeypatch.setattr(Rounds, "advance", advance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "first", "finding"),
    [
        (
            lose_accepted_updates,
            13,
            "acknowledged, and (is (lost|not durable)|the settings changed)",
        ),
        (keep_a_revoked_update, 1, "against an order|and is asked|the journal lacks it"),
        (end_with_the_first_pause, 0, "rounds are done, and no other follows"),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    first: int,
    finding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(BrokenError, match=finding):
        run_days(range(first, first + PLANTED))


def run_days(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_day(seed)
