"""Tells the operator of a device that nobody coordinates it: a wrong name, or nobody is there.

A federation's name with a typo is a federation that does not exist: nothing ever comes. So a device
that hears no state looks once which federations there are on its broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from fededge._internal.suggestions import unknown
from fededge.errors import WireError
from fededge.transport.session import Session
from fededge.wire.messages import UNKNOWN_FIELD, Presence, State, decode
from fededge.wire.topics import Topics, federation_of

__all__ = ["CoordinatorWatch"]

log = logging.getLogger("agent")

SILENCE = 30.0
"""Seconds without a state after which the device looks for other federations."""

LOOKS = 5.0
"""Seconds for which it listens to their presences."""

MOST_NAMES = 20

NEWER = (
    "the coordinator runs a newer version of FedEdge, whose state this one cannot read: upgrade "
    "FedEdge on this device"
)


class Search(Enum):
    """The progress of the search for a state."""

    WAITING = "waiting"
    LOOKING = "looking"
    OVER = "over"


class CoordinatorWatch:
    """Notes states and presences. The constructor only stores; `tick` looks and tells.

    `remark` is one sentence for the status while no state has come; empty otherwise.
    """

    def __init__(self, topics: Topics, session: Session, clock: Callable[[], float]) -> None:
        self.topics = topics
        self.session = session
        self.clock = clock
        self.remark = ""
        self._search = Search.WAITING
        self._since = clock()
        self._names: set[str] = set()
        self._online: bool | None = None
        self._news = ""

    def connected(self) -> None:
        """A connection begins; only one without a state before it leads to a search."""
        if self._search is not Search.OVER:
            self._search, self._since = Search.WAITING, self.clock()

    def read(self, payload: bytes) -> State:
        """Decode a state; one with fields that we do not know is of a newer FedEdge."""
        try:
            return decode(payload, State)
        except WireError as error:
            if UNKNOWN_FIELD in str(error):
                self._news = NEWER
            raise

    def state_came(self) -> None:
        if self._search is Search.LOOKING:
            self.session.unsubscribe(self.topics.presences)
        self._search, self.remark = Search.OVER, ""

    def hears(self, topic: str) -> None:
        """A presence of another federation came."""
        name = federation_of(topic)
        if self._search is Search.LOOKING and name and len(self._names) < MOST_NAMES:
            self._names.add(name)

    def presence_came(self, presence: Presence) -> None:
        """Log when our coordinator goes and comes: while it is gone, its state is an old one."""
        before, self._online = self._online, presence.online
        if not presence.online and before is not False:
            log.warning("the coordinator is offline: its last state stands, and nothing is asked")
        elif presence.online and before is False:
            log.info("the coordinator is online again")

    def tick(self) -> bool:
        """Search if that is due; True if there is a new remark."""
        if self._news:
            self.remark, self._news = self._news, ""
            return True
        waited = self.clock() - self._since
        if self._search is Search.WAITING and waited >= SILENCE:
            self._search, self._since = Search.LOOKING, self.clock()
            self.session.subscribe(self.topics.presences, lasting=False)
        elif self._search is Search.LOOKING and waited >= LOOKS:
            self._search, self.remark = Search.OVER, self._sentence()
            self.session.unsubscribe(self.topics.presences)
            log.warning("%s", self.remark, extra={"event": "state-awaited"})
            return True
        return False

    def _sentence(self) -> str:
        name = self.topics.federation
        others = self._names - {name}
        what = f"no state of federation '{name}' has come: "
        if name in self._names or not others:
            return (
                f"{what}its coordinator has not started yet, the name is wrong, or the broker's "
                "access list does not let this device read it"
            )
        return f"{what}the broker knows {unknown('federation', name, others)}"
