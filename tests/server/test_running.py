"""The running coordinator: commands are queued, and a full disk ends their batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest

from fededge.broker.dynamic_security import CONTROL, admission, denial
from fededge.errors import DiskFullError, WireError
from fededge.service.commands import unwatched
from fededge.transport.session import Connected, Incoming
from fededge.wire.messages import Reply, decode
from fededge_server.api.requests import OrderRequest
from fededge_server.machine.events import Evaluate, Note, RolledBack, SendReply
from fededge_server.machine.fleet.orders import ReleaseOrder, RevokeOrder
from fededge_server.machine.fleet.parts import PARTS, Part
from fededge_server.model.merging import Merging
from fededge_server.running import RunningCoordinator
from tests.faults.oracle import BrokenError
from tests.faults.processes import CoordinatorService
from tests.faults.schedules import KINDS
from tests.faults.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A federation whose first round is open, with all four devices invited."""
    yield from opened_world("all")


def opened_world(kind: str) -> Iterator[World]:
    made = World(0, KINDS[kind])
    with made.disk.mounted():
        made.populate()
        while not invited(made):
            made.calm_step()
        yield made
        for process in made.processes:
            if process.service is not None:
                process.service.abandon()


def running(world: World) -> RunningCoordinator:
    service = world.coordinator.service
    assert isinstance(service, CoordinatorService)
    assert service.running is not None
    return service.running


def invited(world: World) -> list[str]:
    if world.coordinator.service is None:
        return []
    return [*running(world).parts.rounds.participants.invited]


def a_report(world: World) -> Incoming:
    """The first report that a device has sent, before the coordinator has heard it."""
    for _ in range(2000):
        queue = world.broker.queues.get("coordinator", [])
        for packet in queue:
            if packet.topic.endswith("/report"):
                queue.remove(packet)
                return Incoming(packet.topic, packet.payload, False, lambda: None)
        world.calm_step()
    raise AssertionError("no device has trained")


def replies(world: World) -> list[Reply]:
    link = world.coordinator.service.link if world.coordinator.service else None
    assert link is not None
    return [decode(p.payload, Reply) for p in link.outgoing if p.topic.endswith("/reply")]


def test_nobody_is_asked_for_chunks_of_an_update_that_found_the_disk_full(world: World) -> None:
    coordinator, message = running(world), a_report(world)
    before = len(replies(world))
    world.disk.full.add("coordinator")
    coordinator.take(message)
    assert len(replies(world)) == before
    assert coordinator.parts.view.full
    assert coordinator.parts.rounds.participants.doing(Part.SENDING) == []
    world.disk.full.clear()
    coordinator.tick()
    coordinator.take(message)
    assert [reply.kind for reply in replies(world)[before:]] == ["resend"]


@pytest.fixture
def small() -> Iterator[World]:
    """A federation whose updates travel with their reports, its first round open."""
    yield from opened_world("all, the nearest of them, updates with their reports")


def two_updates(world: World, acked: list[str]) -> list[Incoming]:
    """Reports with their updates, of two devices."""
    found = [a_report(world), a_report(world)]
    return [Incoming(m.topic, m.payload, False, partial(acked.append, m.topic)) for m in found]


def test_updates_that_came_together_are_answered_after_one_commit(small: World) -> None:
    coordinator, acked = running(small), list[str]()
    messages = two_updates(small, acked)
    before, entries = len(replies(small)), coordinator.parts.store._seal.entries
    for message in messages:
        coordinator.take(message)
    assert (len(replies(small)), acked) == (before, [])
    assert coordinator.parts.store._seal.entries == entries
    coordinator.pause()
    assert [reply.kind for reply in replies(small)[before:]] == ["accepted"] * 2
    assert acked == [message.topic for message in messages]
    assert coordinator.parts.store._seal.entries == entries + 1


def test_a_group_that_finds_the_disk_full_is_not_taken_and_asked_for_again(small: World) -> None:
    coordinator, acked = running(small), list[str]()
    messages = two_updates(small, acked)
    before = len(replies(small))
    for message in messages:
        coordinator.take(message)
    small.disk.full.add("coordinator")
    coordinator.pause()
    assert (len(replies(small)), len(acked)) == (before, 2)
    assert coordinator.parts.view.full
    assert coordinator.parts.store.recall().accepted == {}
    small.disk.full.clear()
    coordinator.tick()
    for message in messages:
        coordinator.take(message)
    coordinator.pause()
    assert [reply.kind for reply in replies(small)[before:]] == ["accepted"] * 2


def test_a_tick_commits_what_waits(small: World) -> None:
    coordinator = running(small)
    before = len(replies(small))
    coordinator.take(a_report(small))
    coordinator.tick()
    assert [reply.kind for reply in replies(small)[before:]] == ["accepted"]


def test_a_merge_that_found_the_disk_full_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, seen = running(world), 0
    real = coordinator.parts.versions.advance

    def advance(*arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            raise DiskFullError("the disk is full")
        real(*arguments)

    monkeypatch.setattr(coordinator.parts.versions, "advance", advance)
    for _ in range(2000):
        if coordinator.parts.view.round == 1:
            break
        world.calm_step()
    assert seen == 2
    assert coordinator.parts.view.round == 1
    assert not coordinator.parts.view.full


def test_a_refusal_that_found_the_disk_full_is_written_once_there_is_space(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = running(world)
    bad: list[str] = []

    def check(_: Merging, device: str, *arguments: Any) -> float:
        bad.append(device)
        world.disk.full.add("coordinator")
        raise WireError("not finite")

    monkeypatch.setattr(Merging, "check", check)
    while not bad:
        world.calm_step()
    assert (coordinator.parts.view.full, refused(coordinator)) == (True, [])
    before = len(replies(world))
    world.disk.full.clear()
    coordinator.tick()
    assert refused(coordinator) == [(bad[0], "not finite")]
    assert [reply.kind for reply in replies(world)[before:]] == ["refused"]


def refused(coordinator: RunningCoordinator) -> list[tuple[str, str]]:
    with sqlite3.connect(coordinator.parts.store.path) as journal:
        return journal.execute("SELECT device, reason FROM refused").fetchall()


def test_a_device_whose_event_meets_a_bug_is_set_aside_and_the_run_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator, message = running(world), a_report(world)
    device = coordinator.device_of(message.topic)
    with monkeypatch.context() as bug:
        bug.delitem(cast(Any, PARTS[Part.INVITED]), Part.SENDING)
        with pytest.raises(BrokenError, match=f"{device} makes a move that is not in the table"):
            coordinator.take(message)
        bug.setattr(coordinator._commands, "_watch", unwatched)
        coordinator.parts.rounds.participants[device]._take(Part.INVITED)
        for _ in range(30):
            coordinator.take(message)
            coordinator.parts.rounds.participants[device]._take(Part.INVITED)
        coordinator.take(message)
    told = {line for line in caplog.messages if "an event was dropped" in line}
    text = "an event was dropped (bug: invited -> sending); the round goes on without the device"
    assert told == {f"{device}: {text}"}
    assert caplog.text.count(text) <= 20, "at a bounded rate"
    assert coordinator.parts.rounds.participants[device].part is Part.FAILED
    coordinator.take(message)
    assert coordinator.parts.rounds.participants[device].part is Part.SENDING


def test_the_rest_of_a_batch_is_dropped_once_the_run_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = running(world)
    version = coordinator.progress.version
    before = coordinator.parts.view.round
    said: list[str] = []
    monkeypatch.setattr(coordinator.parts.lines, "note", lambda text, device="": said.append(text))
    back = [RolledBack(version, "a test")]
    monkeypatch.setattr(coordinator.parts.judge, "evaluate", lambda version: back)
    coordinator.do(Note("before"), Evaluate(version), Note("dropped"))
    assert [text for text in said if text in ("before", "dropped")] == ["before"]
    assert coordinator.parts.view.round == before + 1, "the event is handled after the batch"


def test_a_request_to_go_back_that_finds_the_disk_full_waits_for_space(world: World) -> None:
    coordinator = running(world)
    request = coordinator.parts.judge.request
    request.make(coordinator.progress.version)
    world.disk.full.add("coordinator")
    coordinator.tick()
    assert (coordinator.parts.view.full, request.open) == (True, True)
    world.disk.full.clear()
    coordinator.tick()
    assert (coordinator.parts.view.full, request.open) == (False, False)
    assert coordinator.progress.restored


def test_all_that_is_said_to_a_device_names_it_and_is_signed(world: World) -> None:
    coordinator = running(world)
    coordinator.executor.do(SendReply("device-0", Reply("late", "000000-0123456789abcdef", "why")))
    reply, run = replies(world)[-1], coordinator.parts.versions.run
    assert (reply.device, reply.run, reply.reason) == ("device-0", run, "why")
    assert reply.signature


def test_a_coordinator_that_stays_is_not_done_when_its_rounds_are() -> None:
    world = World(0, KINDS["all"])
    with world.disk.mounted():
        world.populate()
        while not world.at_rest:
            world.calm_step()
        ended = running(world)
        assert ended.rounds_done
        done = [ended.done]
        ended.stays = True
        assert [*done, ended.done] == [True, False]
        for process in world.processes:
            if process.service is not None:
                process.service.abandon()


def said_to_the_broker(world: World, about: str) -> list[bytes]:
    """The coordinator's messages to the broker's plugin that name this device."""
    link = world.coordinator.service and world.coordinator.service.link
    assert link
    sent = [packet.payload for packet in link.outgoing if packet.topic == CONTROL]
    return [payload for payload in sent if about.encode() in payload]


def test_the_broker_hears_of_a_release_that_nobody_could_tell_it(world: World) -> None:
    """The orders were given while no coordinator ran."""
    coordinator = running(world)
    store = coordinator.parts.store
    for order in (RevokeOrder("device-0"), ReleaseOrder("device-0"), RevokeOrder("device-1")):
        store.order(order, 0.0)
    coordinator.take(Connected())
    assert said_to_the_broker(world, "device-0") == [admission("device-0")]
    assert said_to_the_broker(world, "device-1") == [denial("device-1")]


def test_a_release_that_changes_nothing_still_lets_the_device_in(world: World) -> None:
    """The broker may deny a device that a restored journal takes for active."""
    answers: list[Any] = []
    running(world).take(OrderRequest(ReleaseOrder("device-0"), answers.append))
    assert [answer.changed for answer in answers] == [False]
    assert said_to_the_broker(world, "device-0") == [admission("device-0")]
