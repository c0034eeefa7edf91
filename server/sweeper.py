"""Clears retained messages where nothing may be retained: they would fill the broker."""

from __future__ import annotations

from fededge.errors import WireError
from fededge.transport.session import Incoming, Session
from fededge.wire.topics import Address, Topics

__all__ = ["Sweeper"]

FLEETING = frozenset({"report", "update", "coordinator claim"})
"""Kinds of messages for those who are connected; a retained one is an attack or a bug."""

AGAIN = 10.0
"""Seconds after which the broker is asked for further retained messages."""


class Sweeper:
    """Subscribes the coordinator to topics where nothing is retained, and clears what is."""

    def __init__(self, session: Session, topics: Topics) -> None:
        self.session = session
        self.filters = (
            f"{topics.coordinator}/claim",
            topics.device("+", "report"),
            topics.update("+", "+"),
        )
        self.again: float | None = None

    def subscribe(self) -> None:
        self.session.subscribe(*self.filters, as_published=True)

    def cleared(self, address: Address, message: Incoming) -> bool:
        """True if this is only the echo of a cleared message."""
        return address.kind in FLEETING and not message.payload

    def check(self, address: Address, message: Incoming, now: float) -> None:
        """Clear a message that must not be retained, and raise a WireError: nobody handles it."""
        if address.kind in FLEETING and message.retained:
            self.session.publish(message.topic, b"", retain=True)
            self.again = now + AGAIN if self.again is None else self.again
            raise WireError("it was retained, where nothing may be; it is cleared")

    def tick(self, now: float) -> None:
        """Subscribe again where something was retained: a queue that was full lost the others."""
        if self.again is not None and now >= self.again:
            self.again = None
            self.subscribe()
