"""One record per device: where it stands, and what is known of it; and the table of all.

Three small enums hold the state, since none decides the others: a device may leave while its update
is checked, come back after the round that it was part of, and be drained by an operator meanwhile.
Backoff and quarantine for bad updates are times, not states: they outlast a round. The census
files a record anew after every change of a field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from fededge.wire.messages import Report, Status
from fededge_server.machine.fleet.census import Census, Group
from fededge_server.machine.fleet.parts import PARTS, Attendance, Part
from fededge_server.machine.fleet.standings import SHUT_OUT, Standing
from fededge_server.machine.updates.transfers import Transfer

__all__ = ["UNTOLD", "ForbiddenMoveError", "Participant", "Participants"]

UNCOUNTED = frozenset(
    {
        *("device", "transfer", "stored", "change", "accepted", "merged_change", "verdicts"),
        *("why", "took"),
    }
)
"""Fields that no group depends on."""

UNTOLD = -1
"""The examples of a device that the journal knows without an update: its next word counts."""


class ForbiddenMoveError(RuntimeError):
    """A move that is not in the table: a bug of the machine."""

    def __init__(self, device: str, before: Part, after: Part) -> None:
        super().__init__(f"{device}: {before.value} -> {after.value}")
        self.device, self.move = device, f"{before.value} -> {after.value}"


@dataclass
class Participant:
    """All that the coordinator knows about one device.

    Attributes:
        changed: the records that the census is to file anew.
        known: it has been present with our layout, in this process or an earlier one.
        status: its last word about itself, while it is present or rests.
        heard: when it last gave a sign of life.
        announced: examples that it last announced.
        trained: examples that it had at its last merged update; None without one.
        listed: the journal has that it is known.
        asked: examples that it had announced when the open round asked it; None if it did not.
        written: the same as the journal has it.
        transfer: its update on the way, while it is sending.
        stored: the report of its update in this round, once that is on disk.
        change: the norm of that update's change.
        accepted: the report of its last accepted update, of this round or an earlier one: a device
            that never heard the reply gets the same one again.
        merged_change: the norm of the change of its last merged update.
        failures: turns that failed, in a row.
        silences: rounds that waited for it in vain; a good update halves them.
        given_up: turns that it gave up to rest; a good update halves them.
        verdicts: on its last updates; True for a refusal.
        backoff_until: when its backoff is over; None without one.
        quarantined_until: when its quarantine for bad updates is over.
        standing: what an operator has ordered for it.
        rested_until: when the rest is over that an operator has ordered.
        why: the reason of its last failure, refusal or silence; empty once it is asked again.
        took: seconds from the opening of a round to its last accepted update.
    """

    device: str
    changed: dict[str, Participant] = field(default_factory=dict, repr=False, compare=False)
    attendance: Attendance = Attendance.ABSENT
    part: Part = Part.IDLE
    known: bool = False
    listed: bool = False
    status: Status | None = None
    heard: float | None = None
    announced: int | None = None
    trained: int | None = None
    asked: int | None = None
    written: int | None = None
    transfer: Transfer | None = None
    stored: Report | None = None
    change: float = 0.0
    accepted: Report | None = None
    merged_change: float | None = None
    failures: int = 0
    silences: int = 0
    given_up: int = 0
    verdicts: tuple[bool, ...] = ()
    backoff_until: float | None = None
    quarantined_until: float = -math.inf
    standing: Standing = Standing.ACTIVE
    rested_until: float = -math.inf
    why: str = ""
    took: float | None = None

    def __setattr__(self, name: str, value: object) -> None:
        """Change a field; here, so that no change can miss the census."""
        object.__setattr__(self, name, value)
        if name not in UNCOUNTED:
            self.changed[self.device] = self

    def move(self, part: Part) -> None:
        """Take another part in the round; a move that is not in the table is refused."""
        if part is self.part:
            return
        if part not in PARTS[self.part]:
            raise ForbiddenMoveError(self.device, self.part, part)
        self._take(part)

    def set_aside(self) -> None:
        """Leave the round, whatever the table says; an update that is on disk still counts."""
        if self.part is not Part.STORED:
            self._take(Part.FAILED if self.invited else Part.IDLE)

    def _take(self, part: Part) -> None:
        self.part = part
        if part is Part.INVITED:
            self.why = ""
        if part is not Part.SENDING:
            self.transfer = None
        if part is not Part.STORED:
            self.stored, self.change = None, 0.0

    def arrive(self, status: Status) -> None:
        self.attendance, self.status, self.known = Attendance.PRESENT, status, True
        if self.trained == UNTOLD:
            self.trained = status.examples

    def rest(self, status: Status) -> None:
        self.attendance, self.status = Attendance.RESTING, status

    def leave(self) -> None:
        self.attendance, self.status = Attendance.ABSENT, None

    @property
    def present(self) -> bool:
        """True if it may be asked, as far as the device itself is concerned."""
        return self.attendance is Attendance.PRESENT

    @property
    def resting(self) -> bool:
        return self.attendance is Attendance.RESTING

    @property
    def online(self) -> bool:
        return self.attendance is not Attendance.ABSENT

    @property
    def fresh(self) -> bool:
        """True if it is present with other examples than at its last update, or is new."""
        return self.present and self.status is not None and self.status.examples != self.trained

    @property
    def invited(self) -> bool:
        """True if the open round has asked it."""
        return self.asked is not None

    def first_part(self, now: float) -> Part:
        """Its part in a round that begins with it."""
        if self.quarantined(now):
            return Part.QUARANTINED
        return Part.EXCUSED if self.resting else Part.INVITED

    def part_after_extension(self, now: float) -> Part:
        """Its part after a deadline without a quorum, if it was out."""
        if not self.invited:
            return Part.IDLE
        if self.quarantined(now):
            return Part.QUARANTINED
        if self.resting or self.part is Part.EXCUSED or not self.on_call(now):
            return Part.EXCUSED
        return Part.BACKOFF if self.backs_off(now) else Part.INVITED

    def backs_off(self, now: float) -> bool:
        return self.backoff_until is not None and self.backoff_until > now

    def quarantined(self, now: float) -> bool:
        return self.quarantined_until > now or self.standing in SHUT_OUT

    def ordered(self, now: float) -> Standing:
        """Its standing by the operator's orders that are in force."""
        over = self.standing is Standing.RESTED and self.rested_until <= now
        return Standing.ACTIVE if over else self.standing

    def on_call(self, now: float) -> bool:
        """True if no order of an operator forbids to ask it."""
        return self.ordered(now) is Standing.ACTIVE


class Rules(Protocol):
    """Tells the census where a record belongs, and when that may change by itself."""

    def groups(self, one: Participant, now: float) -> Iterable[Group | Part]: ...
    def ends(self, one: Participant) -> Iterable[float]: ...


class Participants(dict[str, Participant]):
    """Every device that the coordinator has heard of, by its id."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.census: Census[Participant] = Census(rules.groups, rules.ends)

    def of(self, device: str) -> Participant:
        """The record of a device; a new one if it is the first time."""
        if device not in self:
            self[device] = Participant(device, self.census.changed)
        return self[device]

    def forget(self, device: str) -> None:
        """Remove the record of a device."""
        self.census.forget(device)
        self.pop(device, None)

    def count(self, group: Group | Part) -> int:
        return self.census.count(group)

    def doing(self, *parts: Part) -> list[Participant]:
        """The records with one of these parts, in the order of their ids."""
        return self.census.of(*parts)

    def where(self, group: Group) -> list[Participant]:
        """The records of a group, in the order of their ids."""
        return self.census.of(group)

    @property
    def stored(self) -> dict[str, Report]:
        """The updates of this round."""
        return {p.device: p.stored for p in self.doing(Part.STORED) if p.stored is not None}

    @property
    def invited(self) -> dict[str, int]:
        """The devices that this round has asked, with the examples that each announced."""
        return {p.device: p.asked for p in self.where(Group.INVITED) if p.asked is not None}
