"""Events that a session puts into the inbox, and the last will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Connected", "Delivered", "Denied", "Event", "Failed", "Incoming", "Lost", "Will"]


@dataclass(frozen=True)
class Will:
    """A retained message that the broker publishes for us when our connection breaks."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Connected:
    """The broker accepted the connection; `resumed`: it still has our session and its messages."""

    resumed: bool = False


@dataclass(frozen=True)
class Delivered:
    """The broker has acknowledged a message. Pass its number to `Session.delivered`."""

    number: int


@dataclass(frozen=True)
class Denied:
    """The broker refuses to take a message of ours, or a subscription."""

    action: str
    topic: str
    reason: str

    def by(self, user: str) -> str:
        """One sentence for the operator."""
        who = f"user '{user}'" if user else "a client without a user name"
        return (
            f"the broker does not let {who} {self.action} '{self.topic}' ({self.reason}): the user "
            "name of a device must be its id, that of the coordinator 'coordinator'; else correct "
            "the broker's access list (fededge init broker writes one)"
        )


@dataclass(frozen=True)
class Lost:
    """The connection is lost; paho reconnects."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The connection is lost for good: an operator has to act."""

    reason: str


@dataclass(frozen=True)
class Incoming:
    """A message that has arrived; call `ack` once it is handled."""

    topic: str
    payload: bytes
    retained: bool
    ack: Callable[[], None] = field(repr=False, compare=False)


Event = Connected | Delivered | Denied | Lost | Failed | Incoming
