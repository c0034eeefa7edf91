"""The download of a version of the global model, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import islice

from fededge.errors import WireError
from fededge.wire.chunks import Assembly, check_manifest
from fededge.wire.messages import Manifest, State
from fededge_agent.machine.commands import (
    CheckModel,
    Command,
    ExpectModel,
    Follow,
    KeepModelChunk,
    Note,
    Unfollow,
)
from fededge_agent.machine.events import ModelChunkCame, Spoiled
from fededge_agent.machine.transitions import Rows, StateMachine

__all__ = ["DOWNLOAD", "Download", "DownloadState", "IncomingModel"]

MOST_FOLLOWED = 16
"""Chunks to subscribe to at a time: a task or a reply waits behind no more than these."""


class DownloadState(Enum):
    IDLE = "idle"
    DOWNLOADING = "downloading"
    CHECKING = "checking"
    HELD = "held"


WANTED = "a version is wanted"
STOPPED = "the version is outdated, or DownloadFailed"
COMPLETE = "the last chunk came"
SPOILED = "Spoiled"

DOWNLOAD: Rows[DownloadState] = (
    (DownloadState.IDLE, WANTED, DownloadState.DOWNLOADING),
    (DownloadState.HELD, WANTED, DownloadState.DOWNLOADING),
    (DownloadState.DOWNLOADING, STOPPED, DownloadState.IDLE),
    (DownloadState.DOWNLOADING, STOPPED, DownloadState.HELD),
    (DownloadState.DOWNLOADING, COMPLETE, DownloadState.CHECKING),
    (DownloadState.CHECKING, "Fetched", DownloadState.HELD),
    (DownloadState.CHECKING, STOPPED, DownloadState.IDLE),
    (DownloadState.CHECKING, STOPPED, DownloadState.HELD),
    (DownloadState.CHECKING, SPOILED, DownloadState.IDLE),
    (DownloadState.CHECKING, SPOILED, DownloadState.HELD),
    (DownloadState.HELD, SPOILED, DownloadState.IDLE),
)


@dataclass
class IncomingModel:
    """A version that is being downloaded, and the chunks of it that we subscribe to."""

    version: str
    assembly: Assembly
    followed: tuple[int, ...] = ()

    def follow(self) -> list[Command]:
        """Subscribe to the next missing chunks, and to no others."""
        before, self.followed = self.followed, tuple(islice(self.assembly.missing(), MOST_FOLLOWED))
        left: list[Command] = [Unfollow(self.version, before)] if before else []
        return [*left, Follow(self.version, self.followed)]

    def unfollow(self) -> list[Command]:
        return [Unfollow(self.version, self.followed)] if self.followed else []

    def fits(self, state: State) -> bool:
        return (self.version, self.assembly.facts) == (state.version, state.manifest)


class Download(StateMachine[DownloadState]):
    """Downloads one version at a time. `held` is the version that was downloaded last.

    `refused` is a manifest that no honest coordinator can have sent.
    """

    def __init__(self, held: str = "", incoming: IncomingModel | None = None) -> None:
        rests = DownloadState.HELD if held else DownloadState.IDLE
        super().__init__(DownloadState.DOWNLOADING if incoming else rests, DOWNLOAD)
        self.held = held
        self.refused: Manifest | None = None
        self._incoming = incoming

    @property
    def busy(self) -> bool:
        return self.state in (DownloadState.DOWNLOADING, DownloadState.CHECKING)

    @property
    def complete(self) -> bool:
        """True if every chunk is there, and the whole is still to be checked."""
        return self._incoming is not None and self._incoming.assembly.complete

    def begin(self, state: State, most_bytes: int, now: float) -> list[Command]:
        """Download the version of this state.

        Raises:
            WireError: if its manifest contradicts itself, or names more than `most_bytes`.
        """
        try:
            check_manifest(state.manifest, most_bytes)
        except WireError:
            self.refused = state.manifest
            raise
        incoming = self._expect(state, now)
        return [ExpectModel(state.version, state.manifest), *incoming.follow()]

    def _expect(self, state: State, now: float) -> IncomingModel:
        self._move(WANTED, DownloadState.DOWNLOADING)
        self._incoming = IncomingModel(state.version, Assembly(state.manifest, now))
        return self._incoming

    def take(self, event: ModelChunkCame, now: float) -> list[Command]:
        """Keep a chunk; subscribe to the next ones when all that we follow have come."""
        incoming = self._incoming
        if incoming is None or event.version != incoming.version:
            return []
        piece = incoming.assembly.take(event.message, now)
        if piece is None:
            return []
        keep = KeepModelChunk(event.version, *piece)
        arrived = incoming.assembly.have.issuperset(incoming.followed)
        more = arrived and not incoming.assembly.complete
        return [keep, *incoming.follow()] if more else [keep]

    def tick(self, now: float) -> list[Command]:
        """Subscribe again if no chunk has come for a while."""
        incoming = self._incoming
        if incoming is None or not incoming.assembly.overdue(now):
            return []
        return incoming.follow()

    def follow_again(self, now: float) -> list[Command]:
        """Subscribe again: the broker has lost our session."""
        if self._incoming is None or self.complete:
            return []
        self._incoming.assembly.touched, self._incoming.followed = now, ()
        return self._incoming.follow()

    def leave_outdated(self, state: State) -> list[Command]:
        """Stop a download of another version: the broker no longer has its chunks."""
        if self._incoming is None or self._incoming.fits(state):
            return []
        return self.stop()

    def stop(self) -> list[Command]:
        """Give up what is being downloaded or checked."""
        if not self.busy:
            return []
        self._move(STOPPED, self._rest)
        return self._unfollow()

    @property
    def _rest(self) -> DownloadState:
        return DownloadState.HELD if self.held else DownloadState.IDLE

    def _unfollow(self) -> list[Command]:
        incoming, self._incoming = self._incoming, None
        return [] if incoming is None else incoming.unfollow()

    def check(self) -> list[Command]:
        """Have the complete model checked."""
        incoming = self._incoming
        assert incoming is not None
        self._move(COMPLETE, DownloadState.CHECKING)
        return [*self._unfollow(), CheckModel(incoming.version, incoming.assembly.facts)]

    def fetched(self, version: str) -> None:
        self._move("Fetched", DownloadState.HELD)
        self.held = version

    def spoiled(self, event: Spoiled, state: State | None, now: float) -> list[Command]:
        """Expect the version again, but do not subscribe at once.

        A model that is damaged at the broker stays so for a while.
        """
        if self.held == event.version:
            self.held = ""
        self._move(SPOILED, self._rest)
        note = Note(f"model {event.version} is damaged: {event.reason}")
        if state is None or state.version != event.version:
            return [note]
        self._expect(state, now)
        return [note, ExpectModel(event.version, state.manifest)]
