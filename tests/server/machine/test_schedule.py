"""The schedule of the rounds: interval, hours, new examples, and rest while the model is flat."""

from __future__ import annotations

import math
from datetime import datetime

import pytest

from fededge_server.machine.events import (
    Command,
    Invite,
    MergeDone,
    Note,
    PublishState,
    RolledBack,
    RoundOpened,
    RunFinished,
    Tick,
    TimeOfDay,
    Woke,
)
from fededge_server.machine.facts import Recalled
from fededge_server.machine.rounds.schedule import Flatness
from tests.server.machine.test_rounds import V0, V1, Driven, only, opened, status

V2 = "000002-0123456789abcdef"


def at(hour: int, minute: int = 0, second: int = 0) -> TimeOfDay:
    """A moment of a Wednesday."""
    return TimeOfDay(datetime(2026, 11, 18, hour, minute, second))


def phase(driven: Driven) -> str:
    return driven.view.phase


def play(driven: Driven, *devices: str, version: str, score: float | None = None) -> list[Command]:
    """Have these devices answer, and the round end with a version of this accuracy."""
    for device in devices:
        driven.deliver(device, driven.view.version)
    return driven(MergeDone(version, devices, score=score))


# The interval


def test_the_next_round_waits_for_the_interval_and_the_first_does_not() -> None:
    driven = opened("a", "b", interval=100.0, lease=1e4)
    driven.now = 20.0
    commands = play(driven, "a", "b", version=V1)
    assert not only(commands, RoundOpened)
    assert len(only(commands, PublishState)) == 1
    view = driven.view
    assert (view.phase, view.resting, view.rests_until) == (
        "resting",
        "100 s between two rounds",
        120.0,
    )
    assert driven(Tick(), at=119.0) == []
    commands = driven(Tick(), at=120.0)
    assert only(commands, Note) == [Note("the run goes on")]
    assert only(commands, RoundOpened) == [RoundOpened(1, ("a", "b"))]
    assert driven.view.resting == ""


@pytest.mark.parametrize(("age", "left"), [(30.0, 70.0), (1e9, 0.0), (-50.0, 100.0)])
def test_a_coordinator_that_restarts_waits_for_what_is_left_of_the_interval(
    age: float, left: float
) -> None:
    """A clock that went back costs at most one interval."""
    driven = Driven(Recalled(age=age), 1, V1, interval=100.0, lease=1e4)
    driven(status("a"), status("b"))
    assert phase(driven) == ("resting" if left else "open")
    if left:
        assert not only(driven(Tick(), at=left - 0.1), RoundOpened)
        assert only(driven(Tick(), at=left), RoundOpened)


def test_a_round_that_was_open_goes_on_whatever_the_schedule_says() -> None:
    recalled = Recalled(asked={V1: {"a": 5, "b": 5}}, known=frozenset("ab"), age=0.0)
    driven = Driven(recalled, 1, V1, interval=100.0, hours=("22:00-06:00",))
    driven(at(12), Tick())
    assert phase(driven) == "open"


def test_the_last_round_is_done_and_does_not_rest() -> None:
    driven = opened("a", "b", count=1, interval=100.0)
    assert only(play(driven, "a", "b", version=V1), RunFinished)
    assert (driven.view.phase, driven.view.resting) == ("done", "")


# Hours of the day


def test_rounds_begin_only_in_their_hours_which_may_pass_midnight() -> None:
    driven = Driven(hours=("22:00-06:00",), lease=1e6)
    driven(status("a"), status("b"))
    assert phase(driven) == "resting", "the time is not known yet"
    driven(at(21, 30, 15), at=1000.0)
    assert driven.view.resting == "outside of the hours 22:00-06:00"
    assert not only(driven(at(21, 59, 59), at=2000.0), RoundOpened)
    assert only(driven(at(22, 0), at=2001.0), RoundOpened)


def test_the_end_of_the_rest_is_the_beginning_of_the_next_hours() -> None:
    driven = Driven(hours=("22:00-06:00", "Sat 12:00-13:00"))
    driven(at(6, 0, 30), at=500.0)
    assert driven.view.rests_until == 500.0 + 16 * 3600 - 30
    weekend = Driven(hours=("Sat 12:00-13:00",))
    weekend(at(12), at=0.0)  # of a Wednesday
    assert weekend.view.rests_until == 3 * 24 * 3600


def test_a_round_that_is_open_when_the_hours_end_is_finished() -> None:
    driven = Driven(hours=("22:00-06:00",), lease=1e6)
    driven(at(5, 59), status("a"), status("b"))
    driven(at(6, 1), at=30.0)
    assert phase(driven) == "open"
    assert not only(play(driven, "a", "b", version=V1), RoundOpened)
    assert phase(driven) == "resting"


# New examples


def test_a_round_waits_until_so_many_devices_have_new_examples() -> None:
    driven = opened("a", "b", "c", new_data=2, min_devices=3)
    play(driven, "a", "b", "c", version=V1)
    assert driven.view.resting == "fewer than 2 devices have new examples"
    assert driven(status("a"), status("b", examples=9)) == []
    commands = driven(status("c", examples=4))
    assert only(commands, RoundOpened) == [RoundOpened(1, ("a", "b", "c"))]


def test_a_device_that_joins_has_new_examples() -> None:
    driven = opened("a", "b", new_data=1)
    play(driven, "a", "b", version=V1)
    assert phase(driven) == "resting"
    assert only(driven(status("c")), RoundOpened)


def test_what_devices_had_at_their_last_update_outlives_a_restart() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    accepted = driven.machine.participants["a"].accepted
    assert accepted is not None
    known = Recalled(asked={V0: {"a": 5, "b": 5}}, known=frozenset("ab"), accepted={"a": accepted})
    again = Driven(known, 1, V1, new_data=1)
    again(status("a"), status("b"))
    assert phase(again) == "resting"
    assert only(again(status("b", examples=6)), RoundOpened), "it has more than it first said"


# A flat model


def test_versions_without_a_gain_are_counted() -> None:
    flat = Flatness(gain=1.0)
    counts = []
    for score in (0.50, 0.505, 0.51, None, 0.511, 0.2, 0.6, 0.6):
        flat.scored(score)
        counts.append(flat.versions)
    assert counts == [0, 1, 2, 2, 0, 1, 0, 1]


def test_a_flat_model_rests_until_there_is_new_data() -> None:
    driven = opened("a", "b", count=0, rest_after=1, rest_gain=0.0, lease=1e6)
    play(driven, "a", "b", version=V1, score=0.8)
    assert phase(driven) == "open"
    commands = play(driven, "a", "b", version=V2, score=0.8)
    assert not only(commands, RoundOpened)
    view = driven.view
    assert view.resting == (
        "1 versions without a gain; it goes on when 1 devices have new examples"
    )
    assert view.rests_until == math.inf
    assert driven(Tick(), status("a"), at=9000.0) == []
    commands = driven(status("a", examples=6))
    assert only(commands, Woke) == [Woke(2)]
    assert only(commands, RoundOpened) == [RoundOpened(2, ("a", "b"))]


def test_devices_that_were_never_asked_do_not_end_a_rest_at_once() -> None:
    driven = opened("a", "b", "c", participants=2, min_devices=3, count=0, rest_after=1)
    (unasked,) = {*"abc"} - {*driven.invited}
    play(driven, *driven.invited, version=V1, score=0.8)
    play(driven, *driven.invited, version=V2, score=0.8)
    assert phase(driven) == "resting"
    assert only(driven(status(unasked, examples=50)), Woke)


def test_a_restart_does_not_end_a_rest_and_remembers_that_one_ended() -> None:
    known = frozenset("ab")
    asleep = Driven(Recalled(known=known, scores=(0.8, 0.8)), 2, V2, count=0, rest_after=1)
    asleep(status("a"), status("b"))
    assert phase(asleep) == "resting"
    assert not only(asleep(Tick(), at=5.0), Invite)
    awake = Driven(Recalled(known=known, scores=()), 2, V2, count=0, rest_after=1)
    awake(status("a"), status("b"))
    assert phase(awake) == "open"


def test_a_run_that_goes_back_does_not_rest() -> None:
    driven = opened("a", "b", count=0, rest_after=1, interval=10.0)
    driven.machine.schedule.flat.versions = 5
    driven(RolledBack(V1, "bad"))
    assert driven.view.resting == "10 s between two rounds"
    assert only(driven(Tick(), at=10.0), RoundOpened)
