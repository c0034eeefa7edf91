"""Resting devices: not asked, not failed, replaced in the open round, and asked when they wake."""

from __future__ import annotations

from typing import Any

import pytest

from fededge_server.machine.events import (
    Invite,
    Judge,
    Merge,
    MergeDone,
    Note,
    Remember,
    RoundOpened,
    StatusCame,
    Tick,
)
from fededge_server.machine.facts import Recalled
from fededge_server.machine.fleet.eligibility import MOST_GIVEN_UP
from fededge_server.machine.fleet.parts import Part
from tests.server.machine.test_rounds import (
    OTHER,
    V0,
    V1,
    Driven,
    asked_for,
    gone,
    only,
    opened,
    report,
    status,
)


def resting(device: str, **fields: Any) -> StatusCame:
    said = {"activity": "resting", "problem": "the box runs on battery", **fields}
    return status(device, **said)


def test_a_resting_device_counts_as_there_but_is_not_asked() -> None:
    """It has prepared nothing, so it announces neither layout nor examples."""
    driven = Driven(min_devices=3)
    commands = driven(resting("c", layout="", examples=0), status("a"), status("b"))
    assert only(commands, RoundOpened) == [RoundOpened(0, ("a", "b"))]
    assert Note("rests: the box runs on battery", "c") in commands
    driven.deliver("a")
    assert only(driven.deliver("b"), Merge)


def test_a_round_does_not_open_with_resting_devices_alone() -> None:
    driven = Driven(min_devices=2)
    assert not only(driven(resting("a"), resting("b")), RoundOpened)
    assert only(driven(status("a")), RoundOpened), "b is there, and a quorum of one is ready"


def test_a_device_that_gives_its_turn_up_is_neither_waited_for_nor_failed() -> None:
    driven = opened("a", "b", "c")
    driven.deliver("a")
    driven(status("b", activity="training"), resting("b"))
    assert driven.participants["b"].part is Part.EXCUSED
    commands = driven.deliver("c")
    assert [set(merge.reports) for merge in only(commands, Merge)] == [{"a", "c"}]
    (judged,) = only(commands, Judge)
    assert (judged.asked, judged.failed) == (2, 0)
    b = driven.participants["b"]
    assert (b.failures, b.silences, b.backoff_until) == (0, 0, None)


def test_another_device_is_asked_in_its_place() -> None:
    driven = opened("a", "b", "c", participants=2)
    rests, stays = driven.invited
    (other,) = {"a", "b", "c"} - {rests, stays}
    commands = driven(resting(rests))
    assert only(commands, Invite) == [Invite(other, 0, V0)]
    assert set(only(commands, Remember)[0].asked) == {"a", "b", "c"}
    driven.deliver(stays)
    assert only(driven.deliver(other), Merge)


def test_another_device_is_asked_in_its_place_where_a_share_is_asked() -> None:
    driven = opened(*"abcdef", share=0.5)
    assert len(driven.invited) == 3
    (invitation,) = only(driven(resting(driven.invited[0])), Invite)
    assert driven.participants[invitation.device].part is Part.INVITED
    assert len(driven.invited) == 4


def test_nobody_is_asked_in_its_place_once_most_have_answered() -> None:
    driven = opened(*"abcd", participants=3, min_devices=4)
    first, second, third = driven.invited
    driven.deliver(first)
    driven.deliver(second)
    assert not only(driven(resting(third)), Invite)


def test_a_device_that_wakes_is_asked_again_if_its_place_is_free() -> None:
    driven = opened("a", "b")
    driven(resting("b"))
    assert only(driven(status("b")), Invite) == [Invite("b", 0, V0)]
    assert driven.participants["b"].part is Part.INVITED


def test_a_device_that_wakes_is_not_asked_if_another_has_its_place() -> None:
    driven = opened("a", "b", "c", participants=2)
    rests = driven.invited[0]
    driven(resting(rests))
    assert not only(driven(status(rests)), Invite)


def test_an_update_that_was_trained_before_the_rest_is_taken() -> None:
    driven = opened("a", "b")
    driven(resting("b"))
    driven.deliver("a")
    assert driven.view.phase == "merging", "nobody else is awaited"
    driven = opened("a", "b", quorum=2)
    driven(resting("b"))
    driven.deliver("a")
    assert only(driven.deliver("b"), Merge)


def test_a_device_that_rests_while_it_sends_goes_on_sending() -> None:
    driven = opened("a", "b")
    driven(report("b"), resting("b"))
    assert driven.participants["b"].part is Part.SENDING
    assert driven.replies(Tick(), at=5.0) == [("b", "resend")]
    assert not only(driven(Tick(), at=20.0), Invite), "it cannot train again while it rests"


def test_a_resting_device_that_gives_no_sign_of_life_is_gone() -> None:
    driven = Driven(min_devices=2, lease=10.0)
    driven(resting("a"))
    (note,) = only(driven(Tick(), at=10.0), Note)
    assert note.text.startswith("gave no sign of life")
    assert driven.present == []


def test_its_layout_is_compared_once_it_is_awake() -> None:
    driven = Driven(min_devices=1)
    assert driven(resting("a", layout=OTHER)) == [Note("rests: the box runs on battery", "a")]
    (note,) = only(driven(status("a", layout=OTHER)), Note)
    assert note.text.startswith("cannot take part")


def test_a_restarted_round_does_not_wait_for_a_device_that_rests_since() -> None:
    driven = Driven(Recalled(asked_for("ab")))
    driven(resting("a"))
    assert driven.participants["a"].part is Part.EXCUSED
    assert driven.participants["a"].given_up == 0
    assert only(driven.deliver("b"), Merge)


def test_the_deadline_passes_without_a_quorum_while_all_rest() -> None:
    driven = opened("a", "b")
    driven(resting("a"), resting("b"))
    driven(resting("a"), resting("b"), at=59.0)
    assert not only(driven(Tick(), at=60.0), Invite)
    assert {one.part for one in driven.participants.values()} == {Part.EXCUSED}
    assert only(driven(status("a"), at=61.0), Invite) == [Invite("a", 0, V0)]


def test_it_is_asked_again_in_the_next_round() -> None:
    driven = opened("a", "b")
    driven(resting("b"))
    driven.deliver("a")
    driven(MergeDone(V1, ("a",)))
    assert driven.invited == ["a"]
    driven.deliver("a", V1)
    commands = driven(status("b"), MergeDone("000002-0123456789abcdef", ("a",)))
    assert {invite.device for invite in only(commands, Invite)} == {"a", "b"}


@pytest.mark.parametrize("config", [{}, {"participants": 2}, {"share": 0.5}])
def test_a_device_that_flaps_costs_a_bounded_number_of_tasks(config: dict[str, Any]) -> None:
    driven = opened(*"abc", backoff=30.0, quorum=2, **config)
    flapper = driven.invited[0]
    commands = [driven(resting(flapper), status(flapper)) for _ in range(2000)]
    invited = [i for each in commands for i in only(each, Invite)]
    assert sum(invite.device == flapper for invite in invited) <= MOST_GIVEN_UP
    assert len(invited) <= MOST_GIVEN_UP + 1, "and one for the device that took its place"
    others = [device for device in driven.invited if device != flapper]
    ended = [driven.deliver(device) for device in others]
    assert any(only(each, Merge) for each in ended)


def test_a_device_that_gives_every_turn_up_late_loses_its_place_for_longer_each_time() -> None:
    driven = opened("a", "b", count=100, deadline=60.0, slack=0.0, lease=1e6)
    versions = [V0, *(f"{n:06d}-0123456789abcdef" for n in range(1, 12))]
    held_up = 0
    for number, version in enumerate(versions[:-1]):
        start = driven.now
        driven(status("a"), status("b"))
        driven.deliver("a", version)
        if driven.view.phase == "open":
            held_up += 1
            driven(resting("b"), at=start + 50.0)
        assert driven.view.phase == "merging"
        driven(status("b"), MergeDone(versions[number + 1], ("a",)))
    assert held_up == 1, "it backs off at once, as a silent device does"


def test_good_updates_in_between_do_not_let_a_device_hold_up_most_rounds() -> None:
    """Three turns of four given up just before the deadline; a round takes 5 s without it."""
    driven = opened("a", "b", count=100, deadline=60.0, slack=0.0, lease=1e6)
    versions = [V0, *(f"{n:06d}-0123456789abcdef" for n in range(1, 41))]
    turns = held_up = 0
    for number, version in enumerate(versions[:-1]):
        start = driven.now
        driven(Tick(), at=start + 5.0)
        driven.deliver("a", version)
        if driven.view.phase == "open":
            turns += 1
            if turns % 4:
                held_up += 1
                driven(resting("b"), at=start + 59.0)
            else:
                driven.deliver("b", version)
        assert driven.view.phase == "merging"
        driven(status("a"), status("b"), MergeDone(versions[number + 1], ("a",)))
    assert held_up <= 4


def late_rest(at: float, **config: Any) -> int:
    """The silences of a device that gives its turn up so late; a round has 60 s."""
    driven = opened("a", "b", "c", **config)
    driven(resting("b"), at=at)
    return driven.participants["b"].silences


def test_a_rest_in_the_second_half_of_the_rounds_time_counts_as_silence() -> None:
    assert [late_rest(at) for at in (30.0, 31.0)] == [0, 1]
    assert late_rest(31.0, mode="buffered", buffer=3) == 0, "nothing waits"


def test_the_rounds_time_is_shorter_once_most_have_answered() -> None:
    driven = opened("a", "b", "c", slack=5.0)
    driven(Tick(), at=4.0)
    driven.deliver("a")
    driven.deliver("c")
    driven(resting("b"), at=11.0)
    assert driven.participants["b"].silences == 1


def test_after_an_extension_the_time_counts_anew() -> None:
    driven = opened("a", "b", quorum=2, lease=1e6, backoff=1.0)
    driven.deliver("a")
    driven(resting("b"), at=5.0)
    driven(Tick(), at=60.0)
    driven(status("b"), resting("b"), at=70.0)
    b = driven.participants["b"]
    assert (b.given_up, b.silences) == (2, 0)


def test_a_good_update_forgives_half_of_the_turns_that_were_given_up() -> None:
    driven = opened("a", "b", quorum=2)
    for _ in range(MOST_GIVEN_UP):
        driven(resting("b"), status("b"))
    driven.deliver("b")
    assert driven.participants["b"].given_up == MOST_GIVEN_UP // 2


def test_a_device_that_failed_and_then_rests_is_not_failed_in_this_round() -> None:
    driven = opened("a", "b")
    driven(status("b", activity="failed", problem="x"), resting("b"))
    assert driven.participants["b"].part is Part.EXCUSED
    assert only(driven.deliver("a"), Merge)


def test_a_device_that_rests_and_leaves_is_absent() -> None:
    driven = opened("a", "b")
    assert Note("left", "b") in driven(resting("b"), gone("b"))
    assert driven.present == ["a"]
