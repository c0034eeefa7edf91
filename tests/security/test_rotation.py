"""A password is changed on a running Mosquitto; a client with both passwords hardly notices."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fededge.cli import main
from fededge.config import BrokerConfig, CoordinatorConfig, load, template
from fededge.transport.probing import Probing
from fededge.transport.session import Connected, Failed, Lost, Session
from tests.mosquitto import free_port, running
from tests.security.test_access import PATIENCE, Site

pytestmark = pytest.mark.slow


def awaited(inbox: queue.SimpleQueue[Any], kind: type) -> None:
    deadline = time.monotonic() + 3 * PATIENCE
    while (left := deadline - time.monotonic()) > 0:
        event = inbox.get(timeout=left)
        assert kind is Failed or not isinstance(event, Failed), event
        if isinstance(event, kind):
            return
    pytest.fail(f"no {kind.__name__}")


def taken_in(broker: BrokerConfig, password: str) -> bool:
    with Probing(msgspec.structs.replace(broker, password=password), PATIENCE) as line:
        return line.connected


def coordinator_file(folder: Path, port: int) -> Path:
    broker = {"host": "127.0.0.1", "port": port, "username": "coordinator"}
    broker["password_file"] = str(folder / "secrets" / "coordinator.password")
    values = {"federation": "gates", "state": "state", "broker": broker}
    path = folder / "coordinator.toml"
    path.write_text(template(CoordinatorConfig, values))
    return path


def test_a_running_broker_takes_a_new_password(
    place: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, port = place("broker"), free_port()
    make = ["init", "broker", "--out", str(folder), "--federation", "gates", "--port", str(port)]
    assert main([*make, "--devices", "gate-7"]) == 0
    site, secret = Site(folder, port, None, True), folder / "secrets" / "gate-7.password"
    step = ["rotate", "password", "--out", str(folder), "--devices"]
    with running(folder, port):
        old = secret.read_text().strip()
        assert main([*step, "gate-7"]) == 0
        both = "\n".join(secret.read_text().split())
        broker = msgspec.structs.replace(site.user("gate-7"), password=both)
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        session = Session(broker, "gate-7-agent", inbox)
        session.start()  # the new one is refused, the old one taken
        awaited(inbox, Connected)
        assert taken_in(broker, both)
        config = coordinator_file(folder, port)
        capsys.readouterr()
        assert main([*step, "gate-7", "--finish", "--config", str(config)]) == 0
        assert "the broker takes the new password alone" in capsys.readouterr().out
        awaited(inbox, Lost)
        awaited(inbox, Connected)
        assert not taken_in(broker, old)
        assert taken_in(broker, secret.read_text().strip())
        session.stop()
    with running(folder, port):  # and after a restart
        assert not taken_in(broker, old)
        assert taken_in(broker, secret.read_text().strip())


def test_two_wrong_passwords_end_like_one(place: Callable[[str], Path]) -> None:
    folder, port = place("broker"), free_port()
    make = ["init", "broker", "--out", str(folder), "--federation", "gates", "--port", str(port)]
    assert main([*make, "--devices", "gate-7"]) == 0
    with running(folder, port):
        broker = BrokerConfig(
            host="127.0.0.1", port=port, username="gate-7", password="a\nb", wait=2.0
        )
        session = Session(broker, "gate-7-agent", queue.SimpleQueue())
        with pytest.raises(Exception, match="the broker refuses user 'gate-7'"):
            session.start()


def test_the_coordinator_rotates_its_own_password(
    place: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command reaches the broker with the old password, which it replaces."""
    folder, port = place("broker"), free_port()
    make = ["init", "broker", "--out", str(folder), "--federation", "gates", "--port", str(port)]
    assert main([*make, "--devices", "gate-7"]) == 0
    config = coordinator_file(folder, port)
    step = ["rotate", "password", "--out", str(folder), "--devices", "coordinator"]
    with running(folder, port):
        assert main(step) == 0
        assert len(load(config, CoordinatorConfig, {}).broker.passwords) == 2
        capsys.readouterr()
        assert main([*step, "--finish", "--config", str(config)]) == 0
        assert "the broker takes the new password alone" in capsys.readouterr().out
        broker = load(config, CoordinatorConfig, {}).broker
        assert taken_in(broker, broker.password)
