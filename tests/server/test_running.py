"""The running coordinator: commands are queued, and a full disk ends their batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from fededge.errors import DiskFullError
from fededge.transport.session import Incoming
from fededge.wire.messages import Reply, decode
from fededge_server.machine.events import Full, SendReply
from fededge_server.machine.participants import Part
from fededge_server.running import RunningCoordinator
from tests.faults.processes import CoordinatorService
from tests.faults.schedules import KINDS
from tests.faults.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A federation whose first round is open, with all four devices invited."""
    made = World(0, KINDS["all"])
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
    return [*running(world).rounds.participants.invited]


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
    assert coordinator.view.full
    assert coordinator.rounds.participants.doing(Part.SENDING) == []
    world.disk.full.clear()
    coordinator.tick()
    coordinator.take(message)
    assert [reply.kind for reply in replies(world)[before:]] == ["resend"]


def test_a_merge_that_found_the_disk_full_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, seen = running(world), 0
    real = coordinator.versions.advance

    def advance(*arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            raise DiskFullError("the disk is full")
        real(*arguments)

    monkeypatch.setattr(coordinator.versions, "advance", advance)
    for _ in range(2000):
        if coordinator.view.round == 1:
            break
        world.calm_step()
    assert seen == 2
    assert coordinator.view.round == 1
    assert not coordinator.view.full


def test_an_event_that_comes_of_a_command_waits_for_the_end_of_its_batch(world: World) -> None:
    coordinator = running(world)
    done: list[object] = []

    class Watched:
        def do(self, command: object) -> list[object]:
            done.append(command)
            return [Full(True)] * (command == "first")

    coordinator.executor = cast(Any, Watched())
    coordinator.observe = lambda command: None
    coordinator._work_off(cast(Any, ["zero", "first", "dropped"]))
    assert done == ["zero", "first"]
    assert [*coordinator.waiting] == [Full(True)]


def test_all_that_is_said_to_a_device_names_it_and_is_signed(world: World) -> None:
    coordinator = running(world)
    coordinator.executor.do(SendReply("device-0", Reply("late", "000000-0123456789abcdef", "why")))
    reply = replies(world)[-1]
    assert (reply.device, reply.run, reply.reason) == ("device-0", coordinator.versions.run, "why")
    assert reply.signature
