"""New settings come into force between two rounds, and only then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fededge.config import RoundsConfig
from fededge_server.machine.coordinator import CoordinatorMachine
from fededge_server.machine.events import Full, Merge, MergeDone, RoundOpened, SendReply, Tick
from fededge_server.machine.facts import Recalled
from fededge_server.machine.fleet.orders import ApplyOrder, OrderGiven
from fededge_server.machine.rounds.new_settings import SettingsChanged, TakeEffect
from fededge_server.machine.settings import Settings
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

V2 = "000002-0011223344556677"
ORDER = OrderGiven(ApplyOrder(Settings()))


class Fleet(Driven):
    """Devices a and b, behind the whole machine of a coordinator."""

    def __init__(self, recalled: Recalled | None = None, **config: Any) -> None:
        super().__init__(recalled, **{"quorum": 2, "count": 9, **config})
        self.whole = CoordinatorMachine(self.machine, None)

    def hear(self, *events: Any) -> list[Any]:
        found: list[Any] = []
        for event in events:
            found += self.whole.handle(event, self.now)
        return found

    def changed(self, version: str = "", **config: Any) -> SettingsChanged:
        rules = {"quorum": 2, "count": 9, "min_devices": 2, "deadline": 60.0, **config}
        return SettingsChanged(
            replace(FACTS, chunk_bytes=2048), RoundsConfig(**rules), None, version
        )


def test_an_open_round_ends_by_the_old_settings_and_the_next_one_waits_for_the_new() -> None:
    fleet = Fleet()
    fleet.hear(status("a"), status("b"))
    assert only(fleet.hear(ORDER, Tick()), TakeEffect) == []
    merge = only(fleet(*map(with_update, "ab")), Merge)
    assert sorted(merge[0].reports) == ["a", "b"]
    after = fleet.hear(MergeDone(V1))
    assert after[-1] == TakeEffect()
    assert only(after, RoundOpened) == []
    opened = fleet.hear(fleet.changed(V2))
    assert only(opened, RoundOpened)
    view = fleet.machine.view(fleet.now)
    assert (view.round, view.version, view.phase) == (2, V2, "open")
    assert fleet.machine.state.facts.chunk_bytes == 2048


def test_between_rounds_an_order_takes_effect_at_once() -> None:
    fleet = Fleet()
    assert fleet.hear(ORDER)[-1] == TakeEffect()
    assert fleet.hear(Full(True), Tick())[-1] != TakeEffect(), "not while the disk is full"
    assert fleet.hear(Full(False))[-1] == TakeEffect()
    fleet.hear(fleet.changed())
    assert only(fleet.hear(Tick()), TakeEffect) == []


def test_an_order_of_an_earlier_process_waits_for_the_round_that_it_had_begun() -> None:
    begun = Fleet(Recalled(asked={V0: {"a": 10, "b": 10}}, changing=True))
    assert only(begun.hear(status("a"), status("b")), TakeEffect) == []
    assert Fleet(Recalled(changing=True)).hear(Tick())[-1] == TakeEffect()


@pytest.mark.parametrize("mode", ["late", "fold"])
def test_an_update_by_the_old_settings_is_late(mode: str) -> None:
    """Also where late updates are folded: they were trained by other terms."""
    fleet = Fleet(late="fold") if mode == "fold" else Fleet()
    fleet.hear(status("a"), status("b"))
    fleet(*map(with_update, "ab"))
    fleet.hear(ORDER, MergeDone(V1), fleet.changed(V2, late=mode if mode == "fold" else "refuse"))
    (reply,) = only(fleet(report("b", V1)), SendReply)
    assert reply.reply.kind in ("late", "refused")
    assert reply.reply.reason


def test_more_rounds_wake_a_run_that_was_done_and_fewer_end_it() -> None:
    fleet = Fleet(count=1)
    fleet.hear(status("a"), status("b"))
    fleet(*map(with_update, "ab"))
    fleet.hear(MergeDone(V1))
    assert fleet.machine.view(0.0).phase == "done"
    assert fleet.hear(ORDER)[-1] == TakeEffect()
    assert only(fleet.hear(fleet.changed(count=2)), RoundOpened)
    resting = Fleet(interval=100.0)
    resting.hear(ORDER, resting.changed(count=1))
    assert resting.machine.view(0.0).phase == "waiting"


def test_the_groups_of_devices_follow_the_new_settings() -> None:
    fleet = Fleet(min_examples=1000)
    assert only(fleet.hear(status("a"), status("b")), RoundOpened) == []
    fleet.hear(ORDER)
    assert only(fleet.hear(fleet.changed(min_examples=0)), RoundOpened)
