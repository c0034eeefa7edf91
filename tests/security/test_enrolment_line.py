"""A box asks for its certificate over a closed broker, and is let in once it is accepted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fededge._internal.processes import Child
from fededge.cli import main
from fededge.config import AgentConfig, CoordinatorConfig, load, template
from fededge.enrolment.request import make_request, read_request
from fededge.transport.probing import Probing
from tests.mosquitto import free_port, running
from tests.security.conftest import make_certificates
from tests.security.test_access import PATIENCE, TOPICS, Site

pytestmark = pytest.mark.slow


class Door:
    """A closed broker, its coordinator's configuration, and the files of boxes that ask."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port, self.pki = folder, port, folder / "pki"
        self.site = Site(folder / "broker", port, self.pki, False)
        self.config = folder / "coordinator.toml"

    def make(self) -> None:
        make_certificates(self.pki)
        more = ["--broker", "127.0.0.1", "--enrolment"]
        assert main(["init", "certificates", "--out", str(self.pki), *more]) == 0
        make = ["init", "broker", "--out", str(self.folder / "broker"), "--federation", "gates"]
        assert main([*make, "--port", str(self.port), "--certificates", str(self.pki)]) == 0
        files = {"ca": "ca.crt", "certificate": "coordinator.crt", "key": "coordinator.key"}
        broker = {name: str(self.pki / file) for name, file in files.items()}
        access = {"host": "127.0.0.1", "port": self.port, "tls": True, **broker}
        values = {"federation": "gates", "state": "state", "broker": access}
        self.config.write_text(template(CoordinatorConfig, values))

    def box(self, device: str) -> Child:
        """A box that asks, and waits."""
        where = ["--out", str(self.folder / device), "--broker", "127.0.0.1"]
        where += ["--port", str(self.port), "--certificates", str(self.pki)]
        command = [sys.executable, "-m", "fededge", "enroll", "--device", device, *where]
        child = Child([*command, "--federation", "gates"], self.folder / f"{device}.log")
        child.start()
        return child


@pytest.fixture(scope="module")
def door(place: Callable[[str], Path]) -> Iterator[Door]:
    made = Door(place("door"), free_port())
    made.make()
    with running(made.site.folder, made.port):
        yield made


def pending(door: Door, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Devices with their fingerprints."""
    capsys.readouterr()
    assert main(["devices", "pending", "--config", str(door.config), "--json"]) == 0
    return {str(name): str(print_) for name, print_ in json.loads(capsys.readouterr().out).items()}


def accept(door: Door, device: str, fingerprint: str) -> int:
    files = ["--config", str(door.config), "--certificates", str(door.pki)]
    return main(["devices", "accept", device, *files, "--fingerprint", fingerprint])


def test_a_box_is_pending_until_it_is_accepted(
    door: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    box = door.box("gate-8")
    try:
        deadline = time.monotonic() + 60.0
        while "gate-8" not in (found := pending(door, capsys)):
            assert time.monotonic() < deadline, box.said(20)
            time.sleep(0.2)
        fingerprint = found["gate-8"]
        assert f"fingerprint: {fingerprint}" in box.said(20)  # as somebody there reads it out
        assert accept(door, "gate-8", fingerprint[::-1]) != 0
        assert not (door.folder / "gate-8" / "gate-8.crt").exists()
        assert accept(door, "gate-8", fingerprint) == 0
        while box.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert box.exit_code == 0, box.said(20)
    finally:
        box.kill()
    config = load(door.folder / "gate-8" / "agent.toml", AgentConfig, {})
    with Probing(config.broker, PATIENCE) as line:
        assert line.connected
        line.subscribe([TOPICS.device("gate-8", "claim")])
        line.publish(TOPICS.device("gate-8", "claim"), b"here")
        line.listen(PATIENCE, lambda: bool(line.heard))
        assert [each.payload for each in line.heard] == [b"here"]
    assert "gate-8" not in pending(door, capsys)


def test_a_box_that_is_not_enrolled_may_ask_and_nothing_else(door: Door) -> None:
    site, answer = door.site, TOPICS.enrolment("gate-7", "answer")
    with (
        Probing(site.user("coordinator"), PATIENCE) as desk,
        Probing(site.user("enrol"), PATIENCE) as stranger,
    ):
        desk.publish(TOPICS.state, b"secret", retain=True)
        desk.subscribe(["#"])
        stranger.subscribe(["#", TOPICS.state, TOPICS.device("enrol", "task")])
        for kind in ("status", "report", "claim"):
            stranger.publish(TOPICS.device("enrol", kind), b"forged", retain=True)
            stranger.publish(TOPICS.device("gate-7", kind), b"forged", retain=True)
        stranger.publish(answer, b"forged", retain=True)
        stranger.publish(TOPICS.enrolment("gate-7", "request"), b"done")
        desk.publish(TOPICS.device("enrol", "task"), b"secret")
        desk.listen(PATIENCE, lambda: any(each.payload == b"done" for each in desk.heard))
        assert b"forged" not in {each.payload for each in desk.heard}
        stranger.listen(0.5)
        assert {each.topic.split("/")[3] for each in stranger.heard} <= {"enrol"}  # answers


def test_only_requests_of_their_own_topic_are_pending(
    door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = make_request(tmp_path / "a.key", "gate-9")
    with Probing(door.site.user("enrol"), PATIENCE) as stranger:
        for topic, payload in (
            ("gate-9", own),
            ("gate-10", own),  # in another's name
            ("gate-11", b"\x00" * 10_000),
            ("coordinator", make_request(tmp_path / "b.key", "gate-12")),
        ):
            stranger.publish(TOPICS.enrolment(topic, "request"), payload, retain=True)
    assert pending(door, capsys) == {"gate-9": read_request(own).fingerprint}
    assert accept(door, "gate-10", read_request(own).fingerprint) == 2
    assert "no request of 'gate-10'" in capsys.readouterr().err
