"""A device that may not train now: it says so at once, begins nothing, and goes on when it may."""

from __future__ import annotations

from fededge_agent.machine.commands import (
    Abandon,
    Announce,
    CheckModel,
    Note,
    Prepare,
    SendUpdate,
    Train,
    Unfollow,
)
from fededge_agent.machine.events import (
    Abandoned,
    Fetched,
    GateClosed,
    GateOpened,
    LinkUp,
    Prepared,
    StateCame,
    Tick,
    Trained,
    TurnFailed,
    TurnLost,
    Unable,
)
from tests.device_agent.machine.test_agent import (
    ALL,
    MINE,
    NEXT,
    OTHER_METHOD,
    STATE,
    V0,
    V1,
    Driven,
    chunk,
    only,
    ready,
    reply,
    task,
    trained,
)

CLOSED = GateClosed("the box runs on battery")


def test_a_device_that_rests_from_the_start_prepares_nothing_and_says_why() -> None:
    driven = Driven(resting="outside the hours 22:00-06:00")
    assert driven(LinkUp()) == [Announce()]
    assert driven(StateCame(STATE)) == []
    view = driven.machine.view
    assert (view.activity, view.problem) == ("resting", "outside the hours 22:00-06:00")
    assert driven(GateOpened()) == [Note("may train again"), Prepare(STATE), Announce()]
    assert driven.doing() == "starting"


def test_a_gate_that_closes_between_turns_is_told_at_once() -> None:
    driven = ready()
    assert driven(CLOSED) == [Note("resting: the box runs on battery"), Announce()]
    assert driven.doing() == "resting"
    assert driven(GateOpened()) == [Note("may train again"), Announce()]
    assert (driven.doing(), driven.machine.view.problem) == ("ready", "")


def test_another_reason_is_told_too() -> None:
    driven = ready()
    driven(CLOSED)
    assert Announce() in driven(GateClosed("the temperature is 80 °C"))
    assert driven.machine.view.problem == "the temperature is 80 °C"


def test_a_gate_that_closes_during_a_turn_abandons_it() -> None:
    driven = ready(held=V0)
    driven(task())
    assert driven(CLOSED) == [Note("resting: the box runs on battery"), Abandon(), Announce()]
    assert driven.doing() == "resting", "before the training has stopped"
    assert driven(Abandoned()) == [Note("training abandoned: the device rests")]
    assert driven(GateOpened()) == [Note("may train again"), Announce()], "the task is void"
    assert driven(task()) == [Train(STATE), Announce()]


def test_a_gate_that_opens_before_the_training_has_stopped() -> None:
    driven = ready(held=V0)
    driven(task(), CLOSED, GateOpened())
    assert driven.doing() == "training"
    assert driven(Abandoned()) == [Note("training abandoned: the device rests"), Announce()]
    assert driven.doing() == "ready"


def test_an_update_that_was_already_trained_is_sent_while_the_device_rests() -> None:
    driven = ready(held=V0)
    driven(task(), CLOSED)
    assert driven(Trained(MINE)) == [SendUpdate(attached=True)]
    assert driven.doing() == "resting"
    assert driven(reply("resend", chunks=(0,))) == [SendUpdate((0,))]
    assert driven(task()) == [SendUpdate(), Announce()]
    assert driven.machine.assignment.task is None


def test_a_task_is_answered_at_once_and_not_kept() -> None:
    driven = ready(held=V0)
    driven(CLOSED)
    assert driven(task()) == [Announce()]
    assert driven(task(V1)) == [Announce()], "whose state has not come yet"
    assert not only(driven(StateCame(NEXT), GateOpened()), Train)


def test_a_lost_update_is_not_trained_again_before_the_device_wakes() -> None:
    driven = trained()
    driven(CLOSED, TurnLost())
    assert not only(driven(task()), Train)
    driven(GateOpened())
    assert only(driven(task()), Train)


def test_a_preparation_that_is_under_way_is_finished() -> None:
    driven = Driven(held=V0)
    driven(LinkUp(), StateCame(STATE), CLOSED)
    assert driven(Prepared(STATE)) == []
    assert driven(task()) == [Announce()]
    driven(GateOpened())
    assert only(driven(task()), Train)


def test_a_download_goes_on_but_is_checked_later() -> None:
    driven = Driven()
    driven(LinkUp(), StateCame(STATE), Prepared(STATE), CLOSED)
    assert not only(driven(chunk(0), chunk(1), chunk(2)), CheckModel)
    assert driven(Tick(), at=500.0) == []
    assert only(driven(GateOpened()), CheckModel)
    driven(Fetched(V0))
    assert only(driven(task()), Train)


def test_an_outdated_download_is_left() -> None:
    driven = Driven()
    driven(LinkUp(), StateCame(STATE), Prepared(STATE), CLOSED)
    assert driven(StateCame(NEXT)) == [Unfollow(V0, ALL)]


def test_a_device_that_cannot_take_part_says_so_rather() -> None:
    driven = Driven()
    driven(LinkUp(), StateCame(STATE), CLOSED, Unable(STATE, "no such method"))
    view = driven.machine.view
    assert (view.activity, view.problem) == ("unable", "no such method")
    driven(StateCame(OTHER_METHOD))
    assert driven.doing() == "unable", "another job is tried when the device wakes"
    assert only(driven(GateOpened()), Prepare)


def test_a_failure_is_over_once_the_device_rests() -> None:
    driven = ready(held=V0)
    driven(task(), TurnFailed("the loss is nan"), CLOSED)
    assert driven.machine.view.problem == "the box runs on battery"
    driven(GateOpened())
    assert driven.doing() == "ready"


def test_a_turn_that_fails_while_the_device_rests_is_told_when_it_wakes() -> None:
    driven = ready(held=V0)
    driven(task(), CLOSED, TurnFailed("the loss is nan"))
    assert driven.doing() == "resting"
    driven(GateOpened())
    assert (driven.doing(), driven.machine.view.problem) == ("failed", "the loss is nan")


def test_an_open_gate_that_opens_changes_nothing() -> None:
    assert ready()(GateOpened()) == []
