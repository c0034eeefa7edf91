"""An attacker on a broker without an access list."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from fededge.config import BrokerConfig
from fededge.errors import WireError
from fededge.transport.session import Incoming, Session
from fededge.wire.messages import State, Status, decode, encode
from fededge.wire.topics import Topics

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

__all__ = ["Attacker"]

M = TypeVar("M", State, Status)


class Attacker:
    """A client without an access list in its way: it hears everything, and says what it likes."""

    def __init__(self, federation: Federation, name: str = "") -> None:
        self.topics = Topics(federation.name)
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The client id that one would guess: the device must not be thrown off by it.
        name = name or f"fededge-{federation.name}-box"
        self.session = Session(BrokerConfig(**federation.broker), name, inbox)
        self.session.subscribe(f"{self.topics.root}/#")
        self.session.start()
        self.heard: list[Incoming] = []

    def hears(self, kind: str) -> list[Incoming]:
        """All messages of this kind so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self.session.inbox.get(timeout=0.1)
                if isinstance(event, Incoming):
                    event.ack()
                    self.heard.append(event)
        return [m for m in self.heard if m.payload and self.topics.parse(m.topic).kind == kind]

    def states(self) -> list[State]:
        return self._read("state", State)

    def problems(self) -> list[str]:
        """The problems in the device's statuses."""
        statuses = self._read("status", Status)
        return [status.problem for status in statuses if status.device == "box"]

    def _read(self, kind: str, form: type[M]) -> list[M]:
        """The valid messages of a kind; the attacker's own garbage is left out."""
        found: list[M] = []
        for message in self.hears(kind):
            with contextlib.suppress(WireError):
                found.append(decode(message.payload, form))
        return found

    def forges(self, state: State) -> None:
        self.session.publish(self.topics.state, encode(state), retain=True)

    def says(self, topic: str, fields: dict[str, Any] | bytes, retain: bool = False) -> None:
        """Publish any JSON, valid or not."""
        payload = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        self.session.publish(topic, payload, retain)

    def device(self, kind: str, fields: dict[str, Any] | bytes, device: str = "box") -> None:
        self.says(self.topics.device(device, kind), fields, retain=kind == "status")

    def statuses(self, device: str = "box") -> list[Status]:
        """All statuses in a device's name, forged ones included."""
        return [status for status in self._read("status", Status) if status.device == device]

    def repeatedly(self, seconds: float, pause: float = 0.1) -> Iterator[State]:
        """Yield the newest state again and again, for this many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield self.states()[-1]
            time.sleep(pause)
