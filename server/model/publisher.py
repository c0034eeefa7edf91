"""Publishes the current model, as retained chunks, and the retained state that names it.

A state is published once the broker has every chunk of its model. So whoever reads it finds them,
and a coordinator that comes back and finds its own state need not publish them again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from fededge.credentials.signing_keys import SigningKey
from fededge.errors import DiskFullError, WireError
from fededge.transport.outbox import Parcel
from fededge.transport.session import Delivered, Session
from fededge.wire import chunks
from fededge.wire.messages import Manifest, State, decode, encode
from fededge.wire.signing import sign, signed_by
from fededge.wire.topics import Topics
from fededge_server.store import Store

__all__ = ["Publisher"]

log = logging.getLogger("coordinator")

CHUNK_EXPIRY = 7 * 24 * 3600
REFRESHED = CHUNK_EXPIRY / 2
"""Seconds after which chunks are published again, lest they expire."""


@dataclass
class Publisher:
    """The broker's copy of the model and the state.

    `describe` makes the state, `payload` gives the bytes of the model. A version has at most
    `most_chunks`, whatever a state claims that somebody else wrote. `chunks_of` is the version
    whose chunks were handed to the session: no state goes out before those of its version.
    """

    session: Session
    topics: Topics
    store: Store
    describe: Callable[[Manifest], State]
    payload: Callable[[], chunks.Payload]
    most_chunks: int
    manifest: Manifest
    key: SigningKey | None
    wall: Callable[[], float]
    warn: Callable[[str], None] = log.warning
    announced: bool = False
    issued: int = 0
    echoes: set[bytes] = field(default_factory=set)
    found: State | None = None
    looking: bool = True
    due: bool = False
    put_at: float | None = None
    overwritten: bool = False
    outdated: set[str] = field(default_factory=set)
    chunks_of: str = ""

    @property
    def idle(self) -> bool:
        """True if the broker has all that was to be published."""
        waiting = self.outdated or self.due or self.looking or self.overwritten
        return self.announced and self.session.idle and not waiting

    @property
    def ours(self) -> State:
        """The state as we describe it now."""
        return self.describe(self.manifest)

    # A connection begins: learn what the broker retains before publishing anything

    def look(self) -> None:
        """Treat every connect as the first: a new broker may know nothing of us.

        A state whose echo has not come may still reach that broker, without its chunks.
        """
        if not self.echoes:
            self._note_chunks()
        self.looking, self.found, self.put_at = True, None, None
        if self.echoes:
            self._note("published", "")
            self.echoes.clear()

    def begin(self) -> None:
        """The first publication after a connect: the broker has sent us all that it retains.

        The model is published unless it is there, then the state.
        """
        if self.looking:
            self.looking = False
            self.chunks_of = self.ours.version if self._still_there() else ""
            self.put_state()

    def _still_there(self) -> bool:
        """True if the broker has the chunks: it retained a state of ours that names them."""
        ours, found = self.ours, self.found
        if found is None or not self._fresh(ours.version):
            return False
        return (found.run, found.version, found.manifest) == (ours.run, ours.version, ours.manifest)

    def _fresh(self, version: str) -> bool:
        name, _, when = (self.store.fact("published") or "").partition(" ")
        return name == version and 0 <= self.wall() - float(when) < REFRESHED

    def refresh(self) -> None:
        """At every tick: publish again what was overwritten, and renew chunks before they expire.

        Not at once: two coordinators would answer each other as fast as the broker can.
        """
        self._note_chunks()
        if self.overwritten and not self.looking:
            self.put_state()
        waits = self.put_at is not None
        if (
            self.announced
            and self.session.idle
            and not waits
            and not self._fresh(self.ours.version)
        ):
            self.put_model()
            self.put_state()

    def _note_chunks(self) -> None:
        """Write down when the broker had all chunks: here, so that no round waits for the disk.

        A process that is killed before publishes them again.
        """
        there = self.session.idle and not self.looking and not self.due
        if self.put_at is not None and self.announced and there:
            self._note("published", f"{self.chunks_of} {self.put_at}")
            self.put_at = None

    # Publishing

    def put_model(self) -> None:
        """Publish the current version in retained chunks: the broker hands them to all who ask."""
        payload = self.payload()
        self.manifest = payload.facts
        version = self.chunks_of = self.ours.version
        for index in range(self.manifest.chunks):
            make = functools.partial(payload.chunk, index)
            topic = self.topics.model(version, index)
            self.session.send(Parcel(topic, make, retain=True, expiry=CHUNK_EXPIRY))
        self.put_at = self.wall()

    def put_state(self) -> None:
        """Publish the state, once the broker has the model that it names."""
        self.overwritten = False
        if not self.looking and self.chunks_of != self.ours.version:
            self.put_model()
        self.due = self.looking or not self.session.idle
        if not self.due:
            self._put_state()

    def delivered(self, event: Delivered) -> None:
        self.session.delivered(event)
        if self.due:
            self.put_state()

    def _put_state(self) -> None:
        self.issued = max(self.issued + 1, int(1000 * self.wall()))
        state = msgspec.structs.replace(self.ours, issued=self.issued)
        if self.key is not None:
            state = sign(state, self.key)
            self._note("issued", str(self.issued))  # a clock may be set back
        self.echoes.add(encode(state))
        self.session.publish(self.topics.state, encode(state), retain=True)
        self.announced = True

    def _note(self, name: str, value: str) -> None:
        with contextlib.suppress(DiskFullError):  # it helps a later process, but is not needed
            self.store.note(name, value)

    def outdate(self, version: str) -> None:
        """Clear a version's chunks, once the broker has a state that names another one.

        Until then a device may come that knows only the state before.
        """
        self.session.drop(f"{self.topics.root}/model/{version}/")
        self.outdated.add(version)

    def _clear(self, current: str) -> None:
        outdated, self.outdated = self.outdated - {current}, set()
        for version in sorted(outdated):
            for index in range(self.most_chunks):
                self.session.publish(self.topics.model(version, index), b"", retain=True)

    # States of others

    def came(self, payload: bytes, retained: bool) -> None:
        """A state came from the broker. One that is no echo of ours is a leftover or a forgery."""
        try:
            state = decode(payload, State)
        except WireError:
            self.overwritten = True  # by garbage, or by nothing at all
            raise
        ours = self.ours
        if payload in self.echoes:
            self.echoes.discard(payload)
            if state.version == ours.version:
                self._clear(ours.version)
            return
        signed = self.key is not None and signed_by(state, (self.key.public_key(),))
        left = retained and self.looking and state.version != ours.version
        if left and (signed or self.key is None):
            self.outdate(state.version)  # of an earlier run: nobody else would clear it
        if signed:
            self.issued = max(self.issued, state.issued)  # ours, before our clock was set back
        if self.looking:
            self.found = state if retained else self.found
            return
        if not retained:  # what the broker held as we connected is of an earlier connection
            self.warn("the federation's state was written by somebody else: ours is put back")
        self.overwritten = True
