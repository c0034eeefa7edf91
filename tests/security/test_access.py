"""The access list that `fededge init broker` writes, on a real Mosquitto.

A broker may take a message that it will drop, and a subscription that it will not serve: that
nothing arrives is what counts. Each refusal is shown beside the same message from the one who may
send it, and a later message on the same way tells when the earlier one would have come.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fededge._internal.processes import Child
from fededge.cli import main
from fededge.config import BrokerConfig
from fededge.errors import TransportError
from fededge.transport.session import Incoming, Session, Will
from fededge.wire.topics import Topics
from tests.mosquitto import free_port, running

TOPICS = Topics("gates")
VERSION = "000001-0123456789abcdef"
PATIENCE = 10.0
DONE = b"that was all"


class Site:
    """A closed broker, and who connects to it."""

    def __init__(self, folder: Path, port: int, pki: Path | None, passwords: bool) -> None:
        self.folder = folder
        self.port = port
        self.pki = pki
        self.passwords = passwords

    def user(self, name: str) -> BrokerConfig:
        """The broker settings of this user."""
        facts: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "wait": 2.0}
        if self.pki is not None:
            facts |= {"tls": True, "ca": str(self.pki / "ca.crt")}
        if self.passwords:
            password = (self.folder / "secrets" / f"{name}.password").read_text().strip()
            facts |= {"username": name, "password": password}
        else:
            files = {"certificate": f"{self.pki}/{name}.crt", "key": f"{self.pki}/{name}.key"}
            facts |= files
        return BrokerConfig(**facts)

    def nobody(self) -> BrokerConfig:
        tls: dict[str, Any] = (
            {"tls": True, "ca": f"{self.pki}/ca.crt"} if self.pki is not None else {}
        )
        return BrokerConfig(host="127.0.0.1", port=self.port, wait=0.0, **tls)


WAYS = {"passwords": (False, True), "TLS and passwords": (True, True), "mutual TLS": (True, False)}


@pytest.fixture(scope="module", params=WAYS)
def site(request: pytest.FixtureRequest, pki: Path, place: Callable[[str], Path]) -> Iterator[Site]:
    tls, passwords = WAYS[request.param]
    folder, port = place("broker"), free_port()
    arguments = ["init", "broker", "--out", str(folder), "--federation", "gates"]
    arguments += ["--port", str(port)]
    if passwords:
        arguments += ["--devices", "gate-6", "gate-7"]
    if tls:
        arguments += ["--certificates", str(pki)]
    assert main(arguments) == 0
    with running(folder, port):
        yield Site(folder, port, pki if tls else None, passwords)


class Party:
    """A client that hears all that it is let hear."""

    def __init__(self, config: BrokerConfig, name: str = "", will: Will | None = None) -> None:
        self.session = Session(config, f"test-{time.monotonic_ns()}", queue.SimpleQueue(), will)
        self.session.subscribe("#")
        self.session.start()
        if name:  # the echo of what only we may say tells that the subscription is there
            base = TOPICS.coordinator if name == "coordinator" else TOPICS.device(name)
            self.says(f"{base}/claim", DONE)
            self.hears()

    def says(self, topic: str, payload: bytes = b"x", retain: bool = False) -> None:
        self.session.publish(topic, payload, retain)

    def hears(self, last: bytes = DONE) -> set[tuple[str, bytes]]:
        """All that comes up to the last word, which must come."""
        heard: set[tuple[str, bytes]] = set()
        deadline = time.monotonic() + PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            event = self.session.inbox.get(timeout=left)
            if not isinstance(event, Incoming):
                continue
            event.ack()
            if event.payload == last:
                return heard
            if event.payload:
                heard.add((event.topic, event.payload))
        pytest.fail("the last word did not come")


@pytest.fixture
def parties(site: Site) -> Iterator[dict[str, Party]]:
    names = ("coordinator", "gate-6", "gate-7")
    made = {name: Party(site.user(name), name) for name in names}
    yield made
    for party in made.values():
        party.session.stop()


DOWN = [TOPICS.device("gate-7", kind) for kind in ("task", "reply")]
OWN = [TOPICS.device("gate-7", kind) for kind in ("status", "claim", "report")]
UP = [*OWN, TOPICS.update("gate-7", VERSION, 0)]
ALL = [TOPICS.state, TOPICS.model(VERSION, 0)]
RIVALS = [f"{TOPICS.coordinator}/{kind}" for kind in ("status", "claim")]


def told(topics: list[str]) -> set[tuple[str, bytes]]:
    return {(topic, topic.encode()) for topic in topics}


@pytest.mark.parametrize("topic", DOWN)
def test_a_device_cannot_read_what_another_is_told(parties: dict[str, Party], topic: str) -> None:
    parties["coordinator"].says(topic, topic.encode())
    for name in ("gate-6", "gate-7"):
        parties["coordinator"].says(TOPICS.device(name, "reply"), DONE)
    assert parties["gate-7"].hears() == told([topic])
    assert parties["gate-6"].hears() == set()


@pytest.mark.parametrize("topic", UP)
def test_a_device_cannot_read_what_another_says(parties: dict[str, Party], topic: str) -> None:
    parties["gate-7"].says(topic, topic.encode())
    parties["gate-7"].says(TOPICS.device("gate-7", "report"), DONE)
    heard = parties["coordinator"].hears()
    assert heard == (set() if topic.endswith("claim") else told([topic]))
    parties["coordinator"].says(TOPICS.device("gate-6", "task"), DONE)
    assert parties["gate-6"].hears() == set()


@pytest.mark.parametrize("topic", [*UP, *DOWN, *ALL, *RIVALS])
def test_a_device_cannot_speak_for_another_or_for_the_coordinator(
    parties: dict[str, Party], topic: str
) -> None:
    """Not retained either: the next one who subscribes must not find it."""
    parties["gate-6"].says(topic, topic.encode())
    parties["gate-6"].says(topic, topic.encode(), retain=True)
    parties["gate-6"].says(TOPICS.device("gate-6", "report"), DONE)
    assert parties["coordinator"].hears() == set()
    parties["coordinator"].says(TOPICS.device("gate-7", "task"), DONE)
    assert parties["gate-7"].hears() == set()


def test_everybody_may_do_what_the_protocol_needs(parties: dict[str, Party]) -> None:
    """The other side of the tests above: the same topics, from those whose topics they are."""
    for topic in [*ALL, *DOWN, RIVALS[0]]:
        parties["coordinator"].says(topic, topic.encode())
    parties["coordinator"].says(TOPICS.device("gate-7", "task"), DONE)
    assert parties["gate-7"].hears() == told([*ALL, *DOWN, RIVALS[0]])
    for topic in UP:
        parties["gate-7"].says(topic, topic.encode())
    parties["gate-7"].says(TOPICS.device("gate-7", "report"), DONE)
    heard = parties["coordinator"].hears()
    assert heard >= told([topic for topic in UP if not topic.endswith("claim")])
    parties["coordinator"].says(TOPICS.device("gate-7", "task"), b"and now?")
    assert parties["gate-7"].hears(b"and now?") == told(OWN[:2])  # what a rival would say


@pytest.mark.parametrize("topic", [TOPICS.device("gate-7", "status"), TOPICS.state])
def test_a_last_will_cannot_speak_for_another(
    site: Site, parties: dict[str, Party], topic: str
) -> None:
    with contextlib.suppress(TransportError):  # Mosquitto refuses such a client
        dying = Party(site.user("gate-6"), will=Will(topic, b"gone"))
        client = dying.session._client
        assert client is not None
        dying.session._stopping = True
        sock = client.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        time.sleep(0.5)
    parties["gate-6"].says(TOPICS.device("gate-6", "report"), DONE)
    assert parties["coordinator"].hears() == set()


def test_a_client_without_credentials_is_refused(site: Site) -> None:
    with pytest.raises(TransportError, match=r"refuses an anonymous client|requires one"):
        Party(site.nobody())


def test_a_lost_device_can_be_shut_out(pki: Path, tmp_path: Path) -> None:
    """Two lines in the access list, and a SIGHUP."""
    port = free_port()
    arguments = ["init", "broker", "--out", str(tmp_path), "--federation", "gates"]
    assert main([*arguments, "--port", str(port), "--certificates", str(pki)]) == 0
    site = Site(tmp_path, port, pki, passwords=False)
    report, word = TOPICS.device("gate-6", "report"), f"{TOPICS.coordinator}/status"
    with running(tmp_path, port) as broker:
        lost, coordinator = (Party(site.user(name), name) for name in ("gate-6", "coordinator"))
        lost.says(report, DONE)
        assert coordinator.hears() == set()
        acl = tmp_path / "acl"
        acl.write_text(acl.read_text() + "\nuser gate-6\ntopic deny #\n")
        reload(broker)
        lost.says(report, b"let me in")
        time.sleep(0.5)
        coordinator.says(word, DONE)
        assert coordinator.hears() == set()
        for party in (lost, coordinator):
            party.session.stop()


def reload(broker: Child) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGHUP)
    time.sleep(0.5)
