"""The shell that both services share: MQTT events, dropped messages, and the name."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fededge.errors import DiskFullError, TransportError, WireError
from fededge.service.events import Tick
from fededge.service.log_lines import LogLines
from fededge.service.presence import FORGOTTEN, REPEATED, Holder
from fededge.service.shell import ServiceShell
from fededge.transport.session import Connected, Delivered, Failed, Incoming, Lost, Will
from fededge.wire.messages import Presence, encode
from tests.faults.network import Broker, Link

OURS, RIVAL = "a" * 32, "b" * 32
log = logging.getLogger("test")


class Echo:
    """A machine whose commands are the events."""

    def handle(self, event: Any, now: float) -> list[Any]:
        return [event]


class Shell(ServiceShell[str, Any, Presence]):
    def __init__(self) -> None:
        self.now = 100.0
        self.did: list[Any] = []
        self.rivals = 0
        link: Any = Link(Broker(lambda *_: None), "us", Will("status", b""))
        lines = LogLines(log, lambda: self.now, devices=1)
        super().__init__(Echo(), link, Holder(OURS), Presence, lines, lambda: self.now)

    def carry_out(self, command: Any) -> None:
        if command == "disk full":
            raise DiskFullError("no space")
        self.did.append(command)

    def on_full(self, command: Any, error: DiskFullError) -> None:
        self.handle(f"{command}: {error}")

    def on_message(self, message: Incoming) -> None:
        if message.topic == "status":
            self.hear_name(message.payload)
        else:
            raise WireError("nonsense")

    def on_connected(self, event: Connected) -> None:
        self.announce()

    def announce(self) -> None:
        payload = encode(Presence(OURS, True, "f"))
        self.holder.says(payload, self.now)
        self.session.publish("status", payload, retain=True)

    def on_rival(self) -> None:
        self.rivals += 1

    @property
    def rivalry(self) -> str:
        return f"another one runs ({self.holder.rival})"

    def hear(self, topic: str, payload: bytes) -> bool:
        acked: list[bool] = []
        self.take(Incoming(topic, payload, False, lambda: acked.append(True)))
        return bool(acked)

    @property
    def said(self) -> int:
        link: Any = self.session
        return len(link.outgoing)


def test_a_message_that_is_not_understood_is_acknowledged_and_logged_at_a_bounded_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shell = Shell()
    assert all(shell.hear("elsewhere", b"") for _ in range(100))
    assert caplog.messages == ["message on elsewhere dropped: nonsense"] * 5
    shell.now += 61
    shell.tick()
    assert caplog.messages[5:] == ["95 more lines within a minute, left out"]


def test_the_connection_comes_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    shell = Shell()
    shell.take(Connected())
    assert (shell.connected, shell.said) == (True, 1)
    shell.take(Lost("gone"))
    assert not shell.connected
    assert caplog.messages == ["connection to mqtt://simulated lost (gone)"]
    shell.take(Delivered(3))
    with pytest.raises(TransportError, match="wrong password"):
        shell.take(Failed("wrong password"))


def test_other_events_and_ticks_go_to_the_machine() -> None:
    shell = Shell()
    shell.take("event")
    shell.tick()
    assert shell.did == ["event", Tick()]


def test_a_command_that_finds_the_disk_full_is_told_to_the_shell() -> None:
    shell = Shell()
    shell.do("disk full", "never")
    assert shell.did == ["disk full: no space"]


def test_a_presence_of_somebody_else_is_overwritten_and_named() -> None:
    shell = Shell()
    shell.take(Connected())
    shell.hear("status", encode(Presence(OURS, True, "f")))
    shell.now += REPEATED
    shell.tick()
    assert (shell.said, shell.rivals) == (1, 0), "nobody contests the name"
    shell.hear("status", encode(Presence(RIVAL, True, "f")))
    shell.tick()
    shell.tick()
    assert (shell.said, shell.rivals) == (2, 1)
    assert RIVAL in shell.rivalry
    shell.hear("status", encode(Presence(OURS, True, "f")))
    shell.now += FORGOTTEN
    shell.tick()
    assert (shell.said, shell.holder.rival) == (3, ""), "the rival has fallen silent"


def test_garbage_under_our_name_is_overwritten_and_nobody_is_named() -> None:
    shell = Shell()
    shell.take(Connected())
    shell.hear("status", encode(Presence(OURS, True, "f")))
    shell.now += REPEATED
    shell.hear("status", b"garbage")
    shell.tick()
    assert (shell.said, shell.rivals) == (2, 0)
