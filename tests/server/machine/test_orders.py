"""Orders of an operator, and the rounds that go on without stalling."""

from __future__ import annotations

from typing import Any

import pytest

from fededge.config import RoundsConfig
from fededge_server.machine.events import (
    Discard,
    Full,
    Invite,
    Merge,
    MergeDone,
    Remembered,
    RoundOpened,
    SendReply,
    Tick,
)
from fededge_server.machine.facts import Recalled
from fededge_server.machine.fleet.order_effects import OrderEffects
from fededge_server.machine.fleet.orders import (
    ClearStatus,
    ControlUser,
    DrainOrder,
    ForgetOrder,
    OrderGiven,
    PauseOrder,
    QuarantineOrder,
    ReleaseOrder,
    RestOrder,
    ResumeOrder,
    RevokeOrder,
)
from fededge_server.machine.fleet.parts import Part
from fededge_server.machine.rounds.rounds import Rounds
from tests.server.machine.test_rounds import (
    FACTS,
    V0,
    V1,
    Driven,
    only,
    report,
    status,
    with_update,
)


class Fleet(Driven):
    """Devices a, b and c, asked for the first version; two of them are a quorum."""

    def __init__(self, devices: str = "abc", **config: Any) -> None:
        super().__init__(**{"min_devices": len(devices), "quorum": 2, "count": 9, **config})
        self(*map(status, devices))
        assert self.machine.state.phase == "open"

    def order(self, order: Any) -> list[Any]:
        return OrderEffects(self.machine, None).handle(OrderGiven(order), self.now)

    def parts(self) -> dict[str, Part]:
        return {name: one.part for name, one in sorted(self.participants.items())}


def invited(commands: list[Any]) -> list[str]:
    return [command.device for command in only(commands, Invite)]


def test_a_drained_device_ends_its_turn_and_is_not_asked_again() -> None:
    fleet = Fleet()
    fleet.order(DrainOrder("a"))
    assert fleet.parts()["a"] is Part.INVITED, "its turn is under way"
    merge = only(fleet(*map(with_update, "abc")), Merge)
    assert sorted(merge[0].reports) == ["a", "b", "c"]
    assert sorted(invited(fleet(MergeDone(V1)))) == ["b", "c"]


def test_nobody_waits_for_a_drained_device_that_has_not_begun() -> None:
    fleet = Fleet()
    fleet(*map(with_update, "bc"))
    fleet.order(DrainOrder("a"))
    assert only(fleet(status("a")), Merge), "it says that it has nothing to do"
    assert fleet.parts()["a"] is Part.EXCUSED


def test_a_drained_device_whose_turn_fails_is_not_asked_again() -> None:
    fleet = Fleet()
    fleet(*map(with_update, "bc"))
    fleet.order(DrainOrder("a"))
    assert only(fleet(status("a", activity="failed", problem="x")), Merge)


def test_a_drained_device_in_backoff_is_excused_at_once() -> None:
    fleet = Fleet()
    fleet(status("a", activity="failed", problem="x"), *map(with_update, "bc"))
    assert only(fleet.order(DrainOrder("a")), Merge)


def test_a_rest_ends_by_itself() -> None:
    fleet = Fleet("ab", quorum=1)
    fleet.order(RestOrder("a", 30.0))
    fleet(*map(with_update, "ab"))
    assert invited(fleet(MergeDone(V1))) == ["b"]
    assert invited(fleet(status("a"), at=29.0)) == []
    assert invited(fleet(status("a"), at=31.0)) == ["a"]


def test_a_quarantined_device_is_out_at_once_and_its_update_with_it() -> None:
    fleet = Fleet()
    fleet(with_update("a"))
    commands = fleet.order(QuarantineOrder("a"))
    assert [c.reply.kind for c in only(commands, SendReply)] == ["refused"]
    assert [c.device for c in only(commands, Discard)] == ["a"]
    (merge,) = only(fleet(*map(with_update, "bc")), Merge)
    assert sorted(merge.reports) == ["b", "c"]
    assert sorted(invited(fleet(MergeDone(V1)))) == ["b", "c"]
    (reply,) = only(fleet(report("a", V1)), SendReply)
    assert reply.reply.kind == "refused"


def test_the_last_one_that_a_round_waits_for_is_quarantined_and_the_round_ends() -> None:
    for order in (QuarantineOrder("a"), ForgetOrder("a")):
        fleet = Fleet()
        fleet(*map(with_update, "bc"))
        assert only(fleet.order(order), Merge)


@pytest.mark.parametrize("state", ["invited", "sending", "stored", "excused", "failed"])
@pytest.mark.parametrize("order", [QuarantineOrder, ForgetOrder])
def test_a_device_leaves_the_round_from_any_part(state: str, order: Any) -> None:
    fleet = Fleet()
    events: dict[str, list[Any]] = {
        "invited": [],
        "sending": [report("a")],
        "stored": [with_update("a")],
        "excused": [status("a", activity="resting", problem="x")],
        "failed": [status("a", activity="unable", problem="x")],
    }
    fleet(*events[state])
    fleet.order(order("a"))
    (merge,) = only(fleet(*map(with_update, "bc")), Merge)
    assert sorted(merge.reports) == ["b", "c"]


def test_a_released_device_is_asked_again() -> None:
    fleet = Fleet()
    for order in (QuarantineOrder("a"), ReleaseOrder("a")):
        fleet.order(order)
    fleet(*map(with_update, "bc"))
    assert sorted(invited(fleet(MergeDone(V1)))) == ["a", "b", "c"]


def test_a_forgotten_device_is_a_stranger() -> None:
    fleet = Fleet()
    assert only(fleet.order(ForgetOrder("a")), ClearStatus) == [ClearStatus("a")]
    assert "a" not in fleet.participants
    (reply,) = only(fleet(with_update("a")), SendReply)
    assert (reply.reply.kind, "was not asked" in reply.reply.reason) == ("refused", True)
    assert invited(fleet(status("a"))) == ["a"], "it joined again, as a new one"


def test_a_restarted_round_does_not_ask_a_device_that_was_forgotten_before_it_went_on() -> None:
    recalled = Recalled(asked={V0: {"a": 5, "b": 5}}, known=frozenset("ab"))
    machine = Rounds(FACTS, RoundsConfig(count=3, min_devices=2), 0, V0, recalled)
    OrderEffects(machine, None).handle(OrderGiven(ForgetOrder("a")), 0.0)
    assert {*machine.participants.invited} == {"b"}


def test_a_forgotten_device_cannot_repeat_an_update_that_is_merged() -> None:
    fleet = Fleet(late="fold")
    fleet(*map(with_update, "abc"), MergeDone(V1, ("a", "b", "c")))
    fleet.order(ForgetOrder("a"))
    assert [r.reply.kind for r in only(fleet(with_update("a")), SendReply)] == ["refused"]


def test_a_substitute_takes_the_place_of_a_device_that_is_put_out() -> None:
    fleet = Fleet("abcd", participants=3, min_devices=4)
    asked = {*fleet.invited}
    (spare,) = {*"abcd"} - asked
    assert invited(fleet.order(QuarantineOrder(min(asked)))) == [spare]


def test_a_pause_lets_the_open_round_end_and_begins_no_other() -> None:
    fleet = Fleet()
    fleet.order(PauseOrder())
    assert only(fleet(*map(with_update, "abc")), Merge)
    commands = [*fleet(MergeDone(V1)), *fleet(Tick(), *map(status, "abc"), at=100.0)]
    assert only(commands, RoundOpened) == []
    assert fleet.machine.view(fleet.now).paused
    assert only(fleet.order(ResumeOrder()), RoundOpened)


def test_an_update_that_is_put_out_leaves_a_merge_that_a_full_disk_put_off() -> None:
    fleet = Fleet()
    fleet(*map(with_update, "abc"))
    fleet(Full(True))
    assert fleet.machine.state.phase == "merging"
    fleet.order(QuarantineOrder("a"))
    (merge,) = only(fleet(Full(False)), Merge)
    assert sorted(merge.reports) == ["b", "c"]


def test_no_round_waits_for_a_revoked_device_and_its_update_does_not_count() -> None:
    fleet = Fleet()
    fleet(*map(with_update, "ab"))
    commands = fleet.order(RevokeOrder("a"))
    assert only(commands, ControlUser) == [ControlUser("a", denied=True)]
    assert [(c.device, c.reply.kind) for c in only(commands, SendReply)] == [("a", "refused")]
    merge = only(fleet(with_update("c")), Merge)
    assert sorted(merge[0].reports) == ["b", "c"]


def test_a_revoked_device_is_not_there_whatever_it_says() -> None:
    fleet = Fleet()
    fleet.order(RevokeOrder("a"))
    assert only(fleet(*map(with_update, "bc")), Merge)
    fleet(MergeDone(V1))
    commands = fleet(status("a"), report("a", V1))
    assert not fleet.participants["a"].online
    assert "a" not in invited(commands)
    assert {c.reply.kind for c in only(commands, SendReply)} == {"refused"}


def test_a_revoked_device_comes_back_by_release_alone() -> None:
    fleet = Fleet()
    fleet.order(RevokeOrder("a"))
    commands = fleet.order(ReleaseOrder("a"))
    assert only(commands, ControlUser) == [ControlUser("a", denied=False)]
    fleet(status("a"))
    assert fleet.participants["a"].online


def test_the_broker_hears_of_the_release_of_a_device_that_is_not_there() -> None:
    """It may deny a device that a restored journal takes for active, or for drained."""
    fleet = Fleet()
    for device in ("b", "stolen"):
        fleet.order(DrainOrder(device))
    assert only(fleet.order(ReleaseOrder("b")), ControlUser) == []
    let_in = [ControlUser("stolen", denied=False)]
    assert only(fleet.order(ReleaseOrder("stolen")), ControlUser) == let_in


def test_what_was_under_way_for_a_forgotten_device_does_no_harm() -> None:
    """Its entry in the journal is confirmed, or its update is refused, after the order."""
    fleet = Fleet()
    fleet.order(ForgetOrder("a"))
    fleet(Remembered(V0, {"a": 10, "b": 10}, ("a", "b")))
    assert "a" not in fleet.participants
    assert fleet.participants["b"].listed
    fleet(MergeDone(V1, ("b", "c"), {"a": "not finite"}))
    assert "a" not in fleet.participants
