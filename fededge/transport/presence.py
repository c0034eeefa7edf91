"""One holder per name: a starting coordinator or agent first asks whether its name is taken.

The holder of a name keeps a retained presence beside it (`…/status`, with a last will) and
answers claims (`…/claim`). A presence that answers nothing is a leftover of a lost broker. Two that
slip through together throw each other off the broker, which knows them by one client id, until
each has seen the other's presence: then `Holder` leaves one.
"""

from __future__ import annotations

import queue
import time
import uuid
from dataclasses import dataclass
from typing import Any, TypeVar

from fededge.config import BrokerConfig
from fededge.errors import RefusedError, WireError
from fededge.transport.session import Failed, Message, Session
from fededge.wire.messages import Claim, Presence, decode, encode

__all__ = ["Holder", "claim_name"]

P = TypeVar("P", bound=Presence)

AWAIT_ANSWER = 3.0


@dataclass
class Holder:
    """Our hold on a name: tells when another process holds it too, and who has to go."""

    instance: str
    announced: bool = False

    def rival(self, presence: Presence) -> str | None:
        """The instance that shares our name.

        What comes before the first echo of our own presence is older than it, and so a leftover:
        retained, or kept by the broker for a process of ours that was killed.
        """
        if presence.instance == self.instance:
            self.announced = True
            return None
        return presence.instance if self.announced and presence.online else None

    def must_go(self, rival: str) -> bool:
        """Both sides decide alike: the smaller instance stays."""
        return rival < self.instance


def claim_name(
    broker: BrokerConfig, base: str, instance: str, what: str, kind: type[Presence] = Presence
) -> None:
    """Return if the name below `base` is free or our own; raise RefusedError if it is taken.

    Asks under a client id of its own, so that the holder's session is not disturbed.
    """
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    session = Session(broker, f"claim-{uuid.uuid4().hex[:16]}", inbox)
    session.subscribe(f"{base}/status")
    session.subscribe(f"{base}/claim")
    session.start()
    try:
        _ask(session, inbox, base, instance, what, kind)
    finally:
        session.stop()


def _ask(
    session: Session,
    inbox: queue.SimpleQueue[Any],
    base: str,
    instance: str,
    what: str,
    kind: type[Presence],
) -> None:
    """Publish a claim and listen. The broker sends us the retained presence before the echo of
    our own claim: once that is back, a name without a presence is free.
    """
    session.publish(f"{base}/claim", encode(Claim(instance)))
    holder = ""
    deadline = time.monotonic() + AWAIT_ANSWER
    while (left := deadline - time.monotonic()) > 0:
        try:
            event = inbox.get(timeout=left)
        except queue.Empty:
            break
        if isinstance(event, Failed):
            raise RefusedError(event.reason)
        if not isinstance(event, Message):
            continue
        event.ack()
        if event.topic.endswith("/claim"):
            if _claimant(event.payload) == instance and not holder:
                return
            continue
        presence = _read(event.payload, kind)
        if presence is None or not presence.online or presence.instance == instance:
            continue
        if presence.answers == instance:
            raise RefusedError(f"{what} is already running (instance {presence.instance})")
        holder = presence.instance


def _claimant(payload: bytes) -> str:
    try:
        return decode(payload, Claim).instance
    except WireError:
        return ""


def _read(payload: bytes, kind: type[P]) -> P | None:
    try:
        return decode(payload, kind)
    except WireError:
        return None
