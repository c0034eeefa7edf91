"""The state that the parts of the round machine share: the open round, and every device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fededge.config import RoundsConfig
from fededge.wire.messages import round_of
from fededge_server.machine.events import Command, Invite, Refuse, Remember, Remembered
from fededge_server.machine.facts import RunFacts
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.participants import Participant, Participants

__all__ = ["RoundState", "RoundsView"]

Phase = Literal["waiting", "resting", "open", "merging", "done"]


@dataclass(frozen=True)
class RoundsView:
    """A read-only view of the rounds, for the shell.

    Attributes:
        asked: how many devices the open round has asked.
        quarantined: how many devices are in quarantine.
        resting: why the run rests; empty if it does not.
        rests_until: when the rest ends by itself.
    """

    run: str
    round: int
    version: str
    phase: Phase
    full: bool
    deadline: float
    asked: int
    quarantined: int
    resting: str
    rests_until: float
    paused: bool


@dataclass
class RoundState:
    """The open round and its devices.

    Attributes:
        participants: every device that was heard of.
        asked: the devices that were asked for earlier versions, with their examples.
        recent: earlier versions whose late updates may still be folded, with their rounds.
        full: the disk is full, and no update is taken.
        paused: by order of an operator, no round begins.
        changing: settings are ordered, and no round begins before they are in force.
        unwritten: refusals that are not in the journal yet, by device and version.
        places: how many devices the open round wants; 0: all.
        counted: how many devices the federation had when the round was last opened.
        cutoff: when the round stops waiting, now that it is known how long a turn takes.
        resting: why no round begins though devices are there; empty if the run does not rest.
        rests_until: when the rest ends by itself.
        limit: the longest change that an update may make, with the facts that it was found from:
            the version, its norm, and the number of devices.
    """

    facts: RunFacts
    config: RoundsConfig
    round: int
    version: str
    participants: Participants
    phase: Phase = "waiting"
    asked: dict[str, Mapping[str, int]] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    full: bool = False
    paused: bool = False
    changing: bool = False
    unwritten: dict[tuple[str, str], Refuse] = field(default_factory=dict)
    places: int = 0
    counted: int = 0
    opened: float = 0.0
    deadline: float = math.inf
    cutoff: float = math.inf
    resting: str = ""
    rests_until: float = math.inf
    limit: tuple[tuple[str, float, int], float] | None = None

    def view(self, now: float) -> RoundsView:
        self.participants.census.advance(now)
        return RoundsView(
            run=self.facts.run,
            round=self.round,
            version=self.version,
            phase=self.phase,
            full=self.full,
            deadline=self.deadline,
            asked=self.participants.count(Group.INVITED),
            quarantined=self.participants.count(Group.QUARANTINED),
            resting=self.resting,
            rests_until=self.rests_until,
            paused=self.paused,
        )

    @property
    def spooled(self) -> frozenset[str]:
        """Versions whose updates must stay in the spool."""
        late = self.recent if self.config.folds else {}
        stored = (report.version for report in self.participants.stored.values())
        return frozenset({self.version, *late, *stored})

    def late(self, now: float) -> bool:
        """True in the second half of the time that the open round gives its devices."""
        begun = self.deadline - self.config.deadline  # opened, or extended last
        due = self.cutoff if begun < self.cutoff < self.deadline else self.deadline
        return self.phase == "open" and now - begun > (due - begun) / 2

    def asked_for(self, one: Participant, version: str) -> int | None:
        """The examples that a device had when it was asked for a version; None if it was not."""
        if version == self.version:
            return one.asked
        return self.asked.get(version, {}).get(one.device)

    def too_late(self, version: str) -> str:
        """Why it is too late for an update for a version; empty if it is not.

        It is not before the next version is in the journal: until then a coordinator that restarts
        goes on with the same round, and asks for the update.
        """
        number = self.recent.get(version, self.round if version == self.version else None)
        if number is None:  # no version of ours, or one that is long forgotten
            number = round_of(version)
            return f"round {number + 1} is over" if number < self.round else ""
        fresh = self.round - number <= self.config.max_staleness
        taken = version == self.version or (self.config.folds and fresh)
        return "" if taken and self.phase != "done" else f"round {number + 1} is over"

    def outdated(self, one: Participant, version: str) -> bool:
        """True if a later update of the device was accepted: this one was decided on long ago."""
        return one.accepted is not None and round_of(version) <= round_of(one.accepted.version)

    def invitations(self, devices: Iterable[Participant]) -> list[Command]:
        """Ask devices for a turn; nobody while the disk is full.

        That a device is asked may not be on disk then: it would be refused after a restart.
        """
        if self.full:
            return []
        return [Invite(one.device, self.round, self.version) for one in devices]

    def remember(self) -> list[Command]:
        """Write down who was asked and who is known, as far as the journal has not confirmed it."""
        self.counted = self.participants.count(Group.KNOWN)
        unwritten = self.participants.where(Group.UNWRITTEN)
        asked = {one.device: one.asked for one in unwritten if one.asked is not None}
        known = tuple(one.device for one in self.participants.where(Group.UNLISTED))
        if not asked and not known:
            return []
        return [Remember(self.round, self.version, asked, known)]

    def remembered(self, event: Remembered) -> None:
        """The journal has it: it need not be written again. A device may be forgotten meanwhile."""
        for one in filter(None, map(self.participants.get, event.known)):
            one.listed = True
        if event.version == self.version:
            for one in filter(None, map(self.participants.get, event.asked)):
                one.written = event.asked[one.device]
