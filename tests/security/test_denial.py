"""A device is shut out of a running Mosquitto, without a reload and without a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fededge._internal.processes import Child
from fededge.broker.dynamic_security import ANSWER, CONTROL, admission, denial, question
from fededge.cli import main
from fededge.cli.enrolment.broker_control import tell_broker
from fededge.errors import TransportError
from fededge.transport.probing import Probing
from fededge.transport.session import Lost
from tests.mosquitto import free_port, running
from tests.security.test_access import DONE, PATIENCE, TOPICS, Party, Site

pytestmark = pytest.mark.slow

WAYS = {"passwords": (False, True), "mutual TLS": (True, False)}
REPORT, TASK = TOPICS.device("gate-7", "report"), TOPICS.device("gate-7", "task")


@pytest.fixture(params=WAYS)
def closed(request: pytest.FixtureRequest, pki: Path, place: Callable[[str], Path]) -> Site:
    """A closed broker that does not run yet."""
    tls, passwords = WAYS[request.param]
    folder, port = place("broker"), free_port()
    arguments = ["init", "broker", "--out", str(folder), "--federation", "gates"]
    arguments += ["--port", str(port)]
    arguments += ["--devices", "gate-6", "gate-7"] if passwords else []
    arguments += ["--certificates", str(pki)] if tls else []
    assert main(arguments) == 0
    return Site(folder, port, pki if tls else None, passwords)


@pytest.fixture
def broker(closed: Site) -> Iterator[Child]:
    with running(closed.folder, closed.port) as child:
        yield child


def cut(party: Party) -> str:
    """The reason why the broker has cut a connection, once it has."""
    deadline = time.monotonic() + PATIENCE
    while (left := deadline - time.monotonic()) > 0:
        event = party.session.inbox.get(timeout=left)
        if isinstance(event, Lost):
            return event.reason
    pytest.fail("the connection stands")


def get_through(site: Site, device: str) -> bool:
    """True if a report of a device reaches the coordinator."""
    with Probing(site.user("coordinator"), PATIENCE) as desk:
        desk.subscribe([TOPICS.device("+", "report")])
        try:
            with Probing(site.user(device), PATIENCE) as box:
                if box.connected:
                    box.publish(TOPICS.device(device, "report"), b"from the box")
        except (OSError, TransportError):
            pass
        desk.publish(REPORT, DONE)
        desk.listen(PATIENCE, lambda: any(each.payload == DONE for each in desk.heard))
        return any(each.payload == b"from the box" for each in desk.heard)


def test_a_denial_cuts_the_connection_and_outlasts_a_restart(closed: Site, broker: Child) -> None:
    """Others stay connected all the while."""
    desk = closed.user("coordinator")
    box, other = Party(closed.user("gate-7"), "gate-7"), Party(closed.user("gate-6"), "gate-6")
    assert get_through(closed, "gate-7")
    assert tell_broker(desk, partial(denial, "gate-7")) == ""
    assert "dministrative" in cut(box)
    box.session.stop()
    assert not get_through(closed, "gate-7")
    assert get_through(closed, "gate-6")
    other.says(TOPICS.device("gate-6", "claim"), DONE)
    assert other.hears() == set()
    assert not any(isinstance(each, Lost) for each in drained(other))
    other.session.stop()
    assert tell_broker(desk, partial(denial, "gate-7")) == ""  # it is idempotent
    assert broker.exit_code is None
    broker.kill()
    with running(closed.folder, closed.port):
        assert not get_through(closed, "gate-7")
        assert tell_broker(desk, partial(admission, "gate-7")) == ""
        assert get_through(closed, "gate-7")


def drained(party: Party) -> list[object]:
    inbox = party.session.inbox
    return [inbox.get() for _ in range(inbox.qsize())]


def test_only_the_coordinator_may_shut_out(closed: Site, broker: Child) -> None:
    with Probing(closed.user("gate-6"), PATIENCE) as thief:
        thief.subscribe([ANSWER])
        thief.publish(CONTROL, denial("gate-7"))
        thief.publish(CONTROL, denial("coordinator"))
        assert tell_broker(closed.user("coordinator"), question) == ""
        thief.listen(0.5)
        assert thief.heard == []
    assert get_through(closed, "gate-7")


def test_init_broker_again_keeps_a_denial(closed: Site, broker: Child) -> None:
    assert tell_broker(closed.user("coordinator"), partial(denial, "gate-7")) == ""
    held = closed.folder / "data" / "dynamic-security.json"
    before = json.loads(held.read_text())
    assert [client["username"] for client in before["clients"]] == ["gate-7"]
    assert main(["init", "broker", "--out", str(closed.folder), "--federation", "doors"]) == 0
    assert json.loads(held.read_text()) == before


def test_a_broker_without_the_plugin_is_told_from_one_that_has_obeyed(closed: Site) -> None:
    conf = closed.folder / "mosquitto.conf"
    lines = [line for line in conf.read_text().splitlines() if not line.startswith("plugin")]
    conf.write_text("\n".join(lines))
    with running(closed.folder, closed.port):
        said = tell_broker(closed.user("coordinator"), partial(denial, "gate-7"))
    assert "no dynamic security plugin" in said
    assert "cannot be reached" in tell_broker(closed.user("coordinator"), question)
