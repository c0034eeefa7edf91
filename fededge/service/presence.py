"""One holder per name: a coordinator or agent that starts first asks whether its name is taken.

The holder of a name keeps a retained presence (`…/status`, with a last will) and answers claims
(`…/claim`) by repeating their nonce. A presence that answers no claim is left over from a process
that is gone. No message in its name ends a running process: `Holder` says when to publish our
presence again, and who the rival is.
"""

from __future__ import annotations

import logging
import math
import queue
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fededge.config import BrokerConfig
from fededge.errors import RefusedError, TransportError, WireError
from fededge.transport.events import Denied
from fededge.transport.session import Failed, Incoming, Session
from fededge.wire.messages import Claim, Presence, Status, decode, encode

__all__ = ["Holder", "claim_name", "new_claim"]

P = TypeVar("P", Presence, Status)

log = logging.getLogger("service")

AWAIT_ANSWER = 3.0

REPEATED = 5.0
"""Shortest time in seconds between two repetitions of our presence."""

FORGOTTEN = 60.0
"""Seconds of silence after which a rival is forgotten."""


@dataclass
class Holder:
    """Our hold on a name: the last presence under it, ours and a rival's.

    `contested`: the presence that the broker retains is not ours. `rival` is the instance of
    another process that claims to hold the name.
    """

    instance: str
    announced: bool = False
    contested: bool = False
    said: bytes = b""
    said_at: float = -math.inf
    rival: str = ""
    rival_at: float = -math.inf

    def says(self, payload: bytes, now: float) -> None:
        """Note what we publish as our presence."""
        self.said, self.said_at = payload, now

    def hears(self, payload: bytes, presence: Presence | Status | None, now: float) -> None:
        """Note what was published under our name, by anybody; `presence` is None if it is garbage.

        A presence that comes before the first echo of our own is stale: retained, or the will of an
        earlier process of ours.
        """
        self.contested = payload != self.said
        if presence is not None and presence.instance == self.instance:
            self.announced = True
        elif presence is not None and presence.online and self.announced:
            self.rival, self.rival_at = presence.instance, now

    def lost(self) -> None:
        """The connection is gone: the next one begins with our presence anyway."""
        self.contested = False

    def due(self, now: float) -> bool:
        """True if our presence must be published again; forgets a rival that has fallen silent."""
        gone = bool(self.rival) and now - self.rival_at >= FORGOTTEN
        if gone:
            self.rival = ""
        return gone or (self.announced and self.contested and now - self.said_at >= REPEATED)


def new_claim() -> Claim:
    """A claim with a fresh nonce."""
    return Claim(uuid.uuid4().hex)


def _any(_: Presence | Status) -> bool:
    return True


def claim_name(
    broker: BrokerConfig,
    base: str,
    claim: Claim,
    instance: str,
    what: str,
    kind: type[P],
    believed: Callable[[P], bool] = _any,
) -> None:
    """Return if the name below `base` is free or our own; raise RefusedError if it is taken.

    Asks under a client id of its own, so that the holder's session is not disturbed.

    Args:
        broker: the broker to ask.
        base: the topic above `status` and `claim`.
        claim: the claim to publish.
        instance: our own; a presence of an earlier process with it is ignored.
        what: the name, for the error.
        kind: the type of the holder's presence.
        believed: decides whether an answer counts; for presences that must be signed.
    """
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    session = Session(broker, f"claim-{uuid.uuid4().hex[:16]}", inbox)
    session.subscribe(f"{base}/status")
    session.subscribe(f"{base}/claim")
    session.start()

    def others(payload: bytes) -> P | None:
        presence = _read(payload, kind)
        if presence is None or not presence.online or presence.instance == instance:
            return None
        return presence if believed(presence) else None

    try:
        session.publish(f"{base}/claim", encode(claim))
        holder = _await_answer(inbox, claim, others, broker.username)
    finally:
        session.stop()
    if holder:
        raise RefusedError(f"{what} is already running (instance {holder})")


def _await_answer(
    inbox: queue.SimpleQueue[Any],
    claim: Claim,
    others: Callable[[bytes], P | None],
    user: str,
) -> str:
    """The instance that answers our claim; empty if none does.

    The broker sends the retained presence before the echo of our claim: if only the echo comes, the
    name is free. If not even that comes, the broker may not let us read.
    """
    taken, heard, deadline = False, False, time.monotonic() + AWAIT_ANSWER
    while (left := deadline - time.monotonic()) > 0:
        try:
            event = inbox.get(timeout=left)
        except queue.Empty:
            break
        if isinstance(event, Failed):
            raise RefusedError(event.reason)
        if isinstance(event, Denied):
            raise TransportError(event.by(user))
        if not isinstance(event, Incoming):
            continue
        event.ack()
        heard = True
        if event.topic.endswith("/claim"):
            if event.payload == encode(claim) and not taken:
                break
        elif (presence := others(event.payload)) is not None:
            if presence.answers == claim.nonce:
                return presence.instance
            taken = True
    if not heard:
        log.warning(
            "the broker has not echoed our claim within %.0f s: it is slow, or its access list "
            "does not let user '%s' read its own topics",
            *(AWAIT_ANSWER, user),
        )
    return ""


def _read(payload: bytes, kind: type[P]) -> P | None:
    try:
        return decode(payload, kind)
    except WireError:
        return None
