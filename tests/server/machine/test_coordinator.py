"""The coordinator's machine: events reach the rounds and the rollout, and no bug ends the run."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import pytest

from fededge.config import RolloutConfig, RoundsConfig
from fededge_server.machine.coordinator import Command, CoordinatorMachine
from fededge_server.machine.events import Event, Full, MergeDone, RolledBack, SetAside, Tick
from fededge_server.machine.fleet.participants import ForbiddenMoveError
from fededge_server.machine.fleet.parts import PARTS, Part
from fededge_server.machine.rounds.rollout import Plan, PlanKept, Planned, RoundsDone, Staging
from fededge_server.machine.rounds.rounds import Rounds
from tests.server.machine.test_rounds import FACTS, V0, V1, report, status

C = TypeVar("C")


def machine() -> CoordinatorMachine:
    """Two devices are invited, and the models of one round can be rolled out."""
    rounds = Rounds(FACTS, RoundsConfig(count=3, min_devices=2, deadline=60.0), 0, V0)
    staging = Staging(RolloutConfig(), "run", Plan.initial(0))
    made = CoordinatorMachine(rounds, staging)
    made.handle(status("a"), 0.0)
    made.handle(status("b"), 0.0)
    assert rounds.view(0.0).phase == "open"
    return made


def found(commands: list[Command], kind: type[C]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def forbid(bug: pytest.MonkeyPatch, before: Part, after: Part) -> None:
    bug.delitem(cast(Any, PARTS[before]), after)


def test_the_rollout_follows_the_rounds_in_a_batch() -> None:
    made = machine()
    (planned,) = found(made.handle(RoundsDone(1), 0.0), Planned)
    made.handle(PlanKept(planned.plan), 0.0)
    assert made.staging is not None
    assert made.staging.plan == planned.plan


def test_time_leads_to_no_plan_while_the_disk_is_full() -> None:
    made = machine()
    assert found(made.handle(RoundsDone(1), 0.0), Planned)
    made.handle(Full(True), 0.0)
    assert found(made.handle(Tick(), 1.0), Planned) == []
    made.handle(Full(False), 1.0)
    assert found(made.handle(Tick(), 2.0), Planned)


def test_an_event_that_meets_a_bug_is_dropped_and_its_device_is_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = machine()
    forbid(monkeypatch, Part.INVITED, Part.SENDING)
    assert made.handle(report("a"), 0.0) == [SetAside("a", "invited -> sending")]
    parts = {one.device: one.part for one in made.rounds.participants.values()}
    assert parts == {"a": Part.FAILED, "b": Part.INVITED}


def test_a_tick_that_meets_a_bug_sets_one_device_aside_and_the_next_does_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = machine()
    for device in "ab":
        made.handle(status(device, activity="failed", problem="x"), 0.0)
    forbid(monkeypatch, Part.BACKOFF, Part.INVITED)
    for device in "ab":
        assert made.handle(Tick(), 50.0) == [SetAside(device, "in backoff -> invited")]
    assert found(made.handle(Tick(), 50.0), SetAside) == []


@pytest.mark.parametrize("event", [MergeDone(V1), RolledBack(V1, "a test")])
def test_a_new_version_that_the_rounds_cannot_follow_ends_the_process(
    event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is ahead of them: a restart goes on from there."""
    made = machine()
    forbid(monkeypatch, Part.INVITED, Part.IDLE)
    with pytest.raises(ForbiddenMoveError):
        made.handle(event, 0.0)
