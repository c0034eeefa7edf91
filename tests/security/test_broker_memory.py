"""The memory of the broker that `fededge init broker` configures, on a real Mosquitto.

A legal federation is never cut off, and a hostile device does not make the broker grow: neither by
what it sends to a coordinator that is away, nor by what it retains.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import queue
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fededge._internal.processes import Child
from fededge.cli import main
from fededge.config import BrokerConfig
from fededge.errors import WireError
from fededge.transport.outbox import Parcel
from fededge.transport.session import Connected, Delivered, Incoming, Lost, Session
from fededge.wire.chunks import Payload
from fededge.wire.topics import Topics
from fededge_server.sweeper import AGAIN, Sweeper
from tests.mosquitto import free_port, running

TOPICS = Topics("gates")
OLD, NEW = "000000-0123456789abcdef", "000001-0123456789abcdef"
PATIENCE = 120.0
MIB = 1 << 20
MODEL = 45 * 10**6
DEVICES = [f"box-{number}" for number in range(4)]
SLACK = 24 * MIB
"""Memory that Mosquitto does not count: its code, and gaps of the allocator."""


class Site:
    """A running broker, and how its users connect."""

    def __init__(self, folder: Path, port: int, child: Child) -> None:
        self.folder = folder
        self.port = port
        self.child = child

    def client(self, user: str, keep: int = 0, name: str = "") -> Session:
        password = (self.folder / "secrets" / f"{user}.password").read_text().strip()
        broker = BrokerConfig(
            host="127.0.0.1", port=self.port, username=user, password=password, wait=5.0
        )
        return Session(
            broker, name or f"{user}-{time.monotonic_ns()}", queue.SimpleQueue(), None, keep
        )

    @property
    def limit(self) -> int:
        found = re.search(
            r"^memory_limit (\d+)$", (self.folder / "mosquitto.conf").read_text(), re.M
        )
        assert found is not None
        return int(found[1])

    @property
    def peak(self) -> int:
        """The most memory that the broker has ever had."""
        assert self.child.exit_code is None, self.child.said(20)
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


Make = Callable[..., Site]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    started: list[Any] = []

    def begin(*flags: object) -> Site:
        port = free_port()
        command = ["init", "broker", "--out", str(tmp_path), "--federation", "gates"]
        command += ["--port", str(port), "--devices", *DEVICES, *map(str, flags)]
        assert main(command) == 0
        context = running(tmp_path, port)
        started.append(context)
        return Site(tmp_path, port, context.__enter__())

    yield begin
    for context in started:
        context.__exit__(None, None, None)


def events(session: Session, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield events while the outbox sends its chunks, until `wanted` is true of one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        event = session.inbox.get(timeout=PATIENCE)
        if isinstance(event, Delivered):
            session.delivered(event)
        assert not isinstance(event, Lost)
        yield event
        if isinstance(event, Incoming):
            event.ack()
        if wanted(event):
            return
    pytest.fail("it did not end")


def send(session: Session, payload: Payload, topic: Callable[[int], str], retain: bool) -> None:
    """A whole payload, as coordinators and agents send it."""
    for index in range(payload.facts.chunks):
        session.send(Parcel(topic(index), functools.partial(payload.chunk, index), retain))
    for _ in events(session, lambda _: session.idle):
        pass


def everywhere(work: Callable[[str], None]) -> None:
    """The same on all devices at once."""
    with ThreadPoolExecutor(len(DEVICES)) as pool:
        list(pool.map(work, DEVICES))


def heard(session: Session, topic: str, last: int) -> dict[str, bytes]:
    """The messages below a topic, until so many of them have come."""
    found: dict[str, bytes] = {}
    for event in events(session, lambda _: len(found) == last):
        if isinstance(event, Incoming) and event.topic.startswith(topic) and event.payload:
            found[event.topic] = event.payload
    return found


def connected(session: Session) -> Session:
    session.start()
    for _ in events(session, lambda event: isinstance(event, Connected)):
        pass
    return session


@pytest.mark.slow
@pytest.mark.parametrize("chunk_bytes", [MIB // 4, 16 * MIB])
def test_a_legal_federation_is_never_cut_off(make: Make, chunk_bytes: int) -> None:
    """Two versions retained, all devices fetch one at once, and then all send to a coordinator
    that is away: every byte arrives.
    """
    site = make("--fleet", 4, "--at-once", 4, "--model-bytes", MODEL, "--chunk-bytes", chunk_bytes)
    payload = Payload.of(os.urandom(MODEL), chunk_bytes)
    count = payload.facts.chunks
    digests = {index: hashlib.sha256(payload.chunk(index)).digest() for index in range(count)}
    coordinator = site.client("coordinator", keep=3600, name="coordinator")
    coordinator.subscribe(TOPICS.update("+", "+"), as_published=True)
    connected(coordinator)
    for version in (OLD, NEW):
        send(coordinator, payload, functools.partial(TOPICS.model, version), retain=True)
    coordinator.stop()

    def takes_its_turn(name: str) -> None:
        device = connected(site.client(name))
        for first in range(0, count, 16):
            some = range(first, min(first + 16, count))
            device.subscribe(*(TOPICS.model(NEW, index) for index in some))
            came = heard(device, TOPICS.root, len(some))
            for index in some:
                assert hashlib.sha256(came[TOPICS.model(NEW, index)]).digest() == digests[index]
        send(device, payload, functools.partial(TOPICS.update, name, NEW), retain=False)
        device.stop()

    everywhere(takes_its_turn)
    back = site.client("coordinator", keep=3600, name="coordinator")
    back.start()
    missing = {TOPICS.update(name, NEW, index): index for name in DEVICES for index in digests}
    for event in events(back, lambda _: not missing):
        if isinstance(event, Incoming):
            index = missing.pop(event.topic)
            assert hashlib.sha256(event.payload).digest() == digests[index]
    back.stop()
    assert "dropped" not in site.child.said(1000)
    assert site.peak < site.limit + SLACK


SMALL = ("--fleet", 4, "--at-once", 1, "--model-bytes", MIB)
GARBAGE = b"\0" * MIB
FLOOD = 500


def flood(site: Site, retain: bool, count: int = FLOOD) -> None:
    """Half a gigabyte below a device's own topics; more often if the broker throws it off."""
    hostile = connected(site.client("box-0"))
    hostile._counting = True
    for number in range(count):
        hostile.publish(TOPICS.update("box-0", OLD, number), GARBAGE, retain)
    arrived, deadline = 0, time.monotonic() + 20.0
    while arrived < count and time.monotonic() < deadline:
        try:
            arrived += isinstance(hostile.inbox.get(timeout=1.0), Delivered)
        except queue.Empty:
            break
    hostile.stop()


def test_a_queue_for_an_absent_coordinator_is_bounded(make: Make) -> None:
    site = make(*SMALL)
    coordinator = site.client("coordinator", keep=3600, name="coordinator")
    coordinator.subscribe(TOPICS.update("+", "+"), TOPICS.device("+", "status"))
    connected(coordinator).stop()
    flood(site, retain=False)
    assert 2 * site.limit < MIB * FLOOD
    assert site.peak < site.limit + SLACK
    honest = connected(site.client("box-1"))
    honest.publish(TOPICS.device("box-1", "status"), b"here", retain=True)
    back = site.client("coordinator", keep=3600, name="coordinator")
    back.subscribe(TOPICS.device("+", "status"))
    back.start()
    assert heard(back, TOPICS.device("box-1"), 1)
    for session in (honest, back):
        session.stop()


def test_the_messages_that_a_device_retains_are_bounded(make: Make) -> None:
    site = make(*SMALL)
    flood(site, retain=True)
    assert site.peak < site.limit + SLACK
    honest = connected(site.client("box-1"))
    honest.subscribe(TOPICS.device("box-1", "claim"))
    honest.publish(TOPICS.device("box-1", "claim"), b"here")
    assert heard(honest, TOPICS.device("box-1"), 1)
    honest.stop()


def retained(site: Site) -> set[str]:
    """The topics with retained messages where none are allowed."""
    probe = connected(site.client("coordinator"))
    probe.subscribe(TOPICS.update("+", "+"), TOPICS.device("+", "report"))
    time.sleep(0.5)
    probe.publish(f"{TOPICS.coordinator}/claim", b"")
    found = set()
    while not probe.inbox.empty():
        event = probe.inbox.get()
        if isinstance(event, Incoming):
            event.ack()
            found |= {event.topic} if event.retained else set()
    probe.stop()
    return found


def test_retained_messages_are_cleared_even_if_they_exceed_a_queue(make: Make) -> None:
    site = make(*SMALL)
    flood(site, retain=True, count=90)
    assert retained(site)
    coordinator = site.client("coordinator", keep=3600)
    sweeper, now = Sweeper(coordinator, TOPICS), 0.0
    sweeper.subscribe()
    connected(coordinator)
    deadline = time.monotonic() + PATIENCE
    while retained(site) and time.monotonic() < deadline:
        sweeper.tick(now := now + AGAIN)
        while True:
            try:
                event = coordinator.inbox.get(timeout=0.5)
            except queue.Empty:
                break
            if isinstance(event, Incoming):
                with contextlib.suppress(WireError):
                    sweeper.check(TOPICS.parse(event.topic), event, now)
                event.ack()
    coordinator.stop()
    assert retained(site) == set()
