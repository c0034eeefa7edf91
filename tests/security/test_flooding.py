"""An enrolled device that floods: many messages, retained garbage, and other devices' topics."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

import msgspec
import pytest

from fededge.config import BrokerConfig
from fededge.transport.session import Incoming, Session
from fededge.wire import reports
from fededge.wire.messages import Presence, Reply, Status, TaskMessage, encode
from tests.security.fleet import HONEST, ROGUE, Fleet
from tests.security.hostile_device import HostileDevice, Update

pytestmark = pytest.mark.slow

FLOOD = 4000
KEPT = 200
LINES = 300
"""Lines of a log that one device may cause in the few minutes that this test takes at most."""


def rubbish(rogue: HostileDevice) -> Iterator[tuple[str, bytes]]:
    """Kinds and payloads, without end: well-formed ones, and others."""
    good = rogue.update(rogue.model())
    flapping: list[dict[str, Any]] = [
        {"activity": "unable", "problem": "x" * 2000},
        {"online": False},
        {"activity": "starting"},
        {"activity": "resting", "problem": "x" * 2000},
        {"activity": "ready", "layout": "0" * 64},
    ]
    for number in count():
        yield "report", b"garbage %d" % number
        yield "report", encode(good.report)
        yield "report", reports.join(good.report, good.chunk(0)[: -(number % 2) or None])
        status = Status(f"{number:032x}", **{"online": True, **flapping[number % len(flapping)]})
        yield "status", encode(msgspec.structs.replace(status, device=ROGUE))
        yield f"update/{good.report.version}/{number}", good.chunk(0)
        if number % 500 == 0:
            yield "report", b" " * 5_000_000
            yield f"update/{good.report.version}/0", b"\0" * 4_000_000


@contextmanager
def flooding(rogue: HostileDevice) -> Iterator[threading.Thread]:
    """Send as fast as the broker takes it, while the block runs and until all is said."""
    client = rogue.session._client
    assert client is not None

    def pour() -> None:
        for kind, payload in islice(rubbish(rogue), FLOOD):
            client.publish(rogue.topics.device(ROGUE, kind), payload, 1).wait_for_publish(30.0)

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


@contextmanager
def retained(rogue: HostileDevice) -> Iterator[None]:
    """Leave things at the broker that every reader of these topics would get at every connect."""
    good = rogue.update(rogue.model())
    topics = [rogue.topics.update(ROGUE, good.report.version, index) for index in range(KEPT)]
    kept = {topic: good.chunk(0) for topic in topics}
    kept[rogue.topics.device(ROGUE, "report")] = encode(good.report)
    kept[rogue.topics.device(ROGUE, "claim")] = b"{}"
    for topic, payload in kept.items():
        rogue.session.publish(topic, payload, retain=True)
    try:
        yield
    finally:
        for topic in kept:
            rogue.session.publish(topic, b"", retain=True)


def test_a_flood_and_what_is_retained_change_nothing(fleet: Fleet) -> None:
    """The coordinator is killed and started in the middle of it."""
    with (
        fleet.run({"count": 6, "min_devices": 2}) as run,
        run.hostile() as rogue,
        retained(rogue),
        flooding(rogue) as flood,
    ):
        run.wait(lambda: run.rounds_done >= 1, "a round")
        run.kill()
        run.again()
        run.ends()
        flood.join()
    assert run.hashes == fleet.simulated(6)
    assert [sorted(round_) for round_ in run.merged()] == [list(HONEST)] * 6
    assert 0 < sum("rogue" in line for line in run.log.splitlines()) < LINES
    assert run.quarantined() == set()


def test_other_devices_topics_and_the_coordinators_are_closed(fleet: Fleet) -> None:
    """Forgeries of all kinds change nothing, and a spy hears nothing of others."""
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    spy = Session(BrokerConfig(**fleet.access(ROGUE)), "spy", heard)
    for topic in ("#", "$share/spies/#", "$share/spies/fededge/v1/gates/device/+/update/+/+"):
        spy.subscribe(topic)
    spy.subscribe("fededge/v1/+/device/+/+", "fededge/v1/+/coordinator/claim", "$SYS/#")
    spy.start()
    with fleet.run({"count": 3, "min_devices": 2}) as run, run.hostile() as rogue:
        for topic, payload in forgeries(rogue):
            for keep in (False, True):
                spy.publish(topic, payload, keep)
        run.ends()
    spy.stop()
    assert run.hashes == fleet.simulated(3)
    assert re.search("somebody else|another coordinator", run.log) is None
    own = f"{rogue.topics.device(ROGUE)}/"
    allowed = (
        rogue.topics.state,
        f"{rogue.topics.root}/model/",
        f"{rogue.topics.coordinator}/status",
    )
    topics = {event.topic for event in drained(heard) if isinstance(event, Incoming)}
    assert [topic for topic in topics if not topic.startswith((own, *allowed))] == []
    assert rogue.topics.state in topics, "it was there"


def forgeries(rogue: HostileDevice) -> Iterator[tuple[str, bytes]]:
    """Yield forged messages of the coordinator and of another device."""
    topics, state, victim = rogue.topics, rogue.now, HONEST[0]
    update: Update = rogue.update(rogue.model(), device=victim)
    yield topics.state, encode(msgspec.structs.replace(state, phase="done"))
    yield topics.model(state.version, 0), b"poison"
    yield f"{topics.coordinator}/status", encode(Presence("0" * 32, True, "gates"))
    yield f"{topics.coordinator}/claim", b'{"nonce":"' + b"0" * 32 + b'"}'
    yield topics.device(victim, "task"), encode(TaskMessage(victim, state.run, state.version))
    reply = Reply("refused", state.version, "no", device=victim, run=state.run)
    yield topics.device(victim, "reply"), encode(reply)
    yield topics.device(victim, "status"), encode(Status("0" * 32, False, device=victim))
    yield topics.device(victim, "claim"), b'{"nonce":"' + b"0" * 32 + b'"}'
    yield topics.device(victim, "report"), encode(update.report)
    yield topics.update(victim, state.version, 0), update.chunk(0)


def drained(inbox: queue.SimpleQueue[Any]) -> Iterator[Any]:
    while not inbox.empty():
        yield inbox.get()
