"""One record per device: where it stands, and which states may follow each other.

Two small enums hold the state, since neither decides the other: a device may leave while its update
is checked, and come back after the round that it was part of. Rest and quarantine are times, not
states: they outlast a round.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fededge.wire.messages import Report, Status
from fededge_server.machine.transfers import Transfer

__all__ = [
    "PARTS",
    "Attendance",
    "ForbiddenMoveError",
    "Part",
    "Participant",
    "Participants",
    "transitions_table",
]

E = TypeVar("E", bound=enum.Enum)


class Attendance(enum.Enum):
    """A device is present by its status, and by a lease that every sign of life renews."""

    ABSENT = "absent"
    PRESENT = "present"


class Part(enum.Enum):
    """A device's part in the round that is open."""

    IDLE = "idle"
    INVITED = "invited"
    RESTING = "resting"
    SENDING = "sending"
    CHECKING = "checking"
    STORED = "stored"
    REFUSED = "refused"
    FAILED = "failed"
    QUARANTINED = "quarantined"


OVER = "the round ends"
EXTENDED = "the deadline passes without a quorum"
FULL = "the disk is full"

PARTS: Mapping[Part, Mapping[Part, str]] = {
    Part.IDLE: {
        Part.STORED: "a restarted coordinator finds its update on disk",
        Part.INVITED: "the round asks the device",
        Part.SENDING: "its update for an earlier version, or from before a restart, is expected",
        Part.QUARANTINED: "a restarted round had asked it, and it is in quarantine since",
    },
    Part.INVITED: {
        Part.SENDING: "its report comes",
        Part.RESTING: "it says that its turn failed",
        Part.FAILED: "it cannot take part, or its turn failed too often",
        Part.IDLE: OVER,
    },
    Part.RESTING: {
        Part.INVITED: "it has rested and is asked again",
        Part.SENDING: "its report comes",
        Part.FAILED: "it cannot take part",
        Part.IDLE: OVER,
    },
    Part.SENDING: {
        Part.CHECKING: "its last chunk comes",
        Part.INVITED: FULL,
        Part.IDLE: f"{FULL} and the round did not ask it, or {OVER} and the update is too late",
    },
    Part.CHECKING: {
        Part.STORED: "the update is on disk",
        Part.REFUSED: "the update does not pass its check",
        Part.INVITED: FULL,
        Part.IDLE: f"{FULL} and the round did not ask it",
    },
    Part.STORED: {
        Part.REFUSED: "the update is an outlier, or no version can be made with it",
        Part.IDLE: OVER,
    },
    Part.REFUSED: {
        Part.INVITED: EXTENDED,
        Part.RESTING: f"{EXTENDED}, and the device rests",
        Part.QUARANTINED: f"{EXTENDED}, and the device is in quarantine",
        Part.IDLE: f"{OVER}, or {EXTENDED} and the round did not ask it",
    },
    Part.FAILED: {
        Part.INVITED: EXTENDED,
        Part.RESTING: f"{EXTENDED}, and the device rests",
        Part.SENDING: "its report comes",
        Part.QUARANTINED: f"{EXTENDED}, and the device is in quarantine",
        Part.IDLE: OVER,
    },
    Part.QUARANTINED: {
        Part.INVITED: f"{EXTENDED}, and its quarantine is over",
        Part.RESTING: f"{EXTENDED}, its quarantine is over, and the device rests",
        Part.SENDING: "its quarantine is over, and its report comes",
        Part.IDLE: OVER,
    },
}
"""The moves from one part to the next, with their reasons. No other move is possible."""

ATTENDANCES: Mapping[Attendance, Mapping[Attendance, str]] = {
    Attendance.ABSENT: {Attendance.PRESENT: "a status says that it is online, with our layout"},
    Attendance.PRESENT: {
        Attendance.ABSENT: "a status or a last will says that it left or cannot take part, "
        "or its lease runs out"
    },
}

AWAITED = frozenset({Part.INVITED, Part.RESTING, Part.SENDING, Part.CHECKING})
"""Parts of devices that a round waits for, if it has asked them."""


ByPart = dict[Part, set[str]]


class ForbiddenMoveError(RuntimeError):
    """A move that is not in the table: a bug of the machine."""


@dataclass
class Participant:
    """All that the coordinator knows about one device.

    Attributes:
        index: the devices by their part, shared with all other records.
        known: it has been present with our layout, in this process or an earlier one.
        status: its last word about itself, while it is present.
        heard: when it last gave a sign of life.
        announced: examples that it last announced.
        asked: examples that it had announced when the open round asked it; None if it did not.
        transfer: its update on the way, while it is sending.
        stored: the report of its update in this round, once that is on disk.
        change: the norm of that update's change.
        accepted: the report of its last accepted update, of this round or an earlier one: a device
            that never heard the reply gets the same one again.
        merged_change: the norm of the change of its last merged update.
        failures: turns that failed, in a row.
        silences: rounds that waited for it in vain.
        verdicts: on its last updates; True for a refusal.
        rests_until: when it may be asked again; None if it need not rest.
        quarantined_until: when its quarantine is over.
    """

    device: str
    index: ByPart = field(default_factory=dict, repr=False)
    attendance: Attendance = Attendance.ABSENT
    part: Part = Part.IDLE
    known: bool = False
    status: Status | None = None
    heard: float | None = None
    announced: int | None = None
    asked: int | None = None
    transfer: Transfer | None = None
    stored: Report | None = None
    change: float = 0.0
    accepted: Report | None = None
    merged_change: float | None = None
    failures: int = 0
    silences: int = 0
    verdicts: deque[bool] = field(default_factory=deque)
    rests_until: float | None = None
    quarantined_until: float = -math.inf

    def move(self, part: Part) -> None:
        """Take another part in the round; a move that is not in the table is refused."""
        if part is self.part:
            return
        if part not in PARTS[self.part]:
            raise ForbiddenMoveError(f"{self.device}: {self.part.value} -> {part.value}")
        self.index.setdefault(self.part, set()).discard(self.device)
        self.index.setdefault(part, set()).add(self.device)
        self.part = part
        if part is not Part.SENDING:
            self.transfer = None
        if part is not Part.STORED:
            self.stored, self.change = None, 0.0

    def arrive(self, status: Status) -> None:
        self.attendance, self.status, self.known = Attendance.PRESENT, status, True

    def leave(self) -> None:
        self.attendance, self.status = Attendance.ABSENT, None

    @property
    def present(self) -> bool:
        return self.attendance is Attendance.PRESENT

    @property
    def invited(self) -> bool:
        """True if the open round has asked it."""
        return self.asked is not None

    @property
    def awaited(self) -> bool:
        """True if the open round waits for it."""
        return self.invited and self.part in AWAITED

    def rests(self, now: float) -> bool:
        return self.rests_until is not None and self.rests_until > now

    def quarantined(self, now: float) -> bool:
        return self.quarantined_until > now


class Participants(dict[str, Participant]):
    """Every device that the coordinator has heard of, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.index: ByPart = {}

    def of(self, device: str) -> Participant:
        """The record of a device; a new one if it is the first time."""
        if device not in self:
            self[device] = Participant(device, self.index)
        return self[device]

    def where(self, condition: Callable[[Participant], bool]) -> list[Participant]:
        """Those for whom it holds, in the order of their ids."""
        return sorted(filter(condition, self.values()), key=lambda one: one.device)

    def doing(self, *parts: Part) -> list[Participant]:
        """Those who have one of these parts, in the order of their ids; not for `IDLE`."""
        found = (device for part in parts for device in self.index.get(part, ()))
        return [self[device] for device in sorted(found)]

    @property
    def stored(self) -> dict[str, Report]:
        """The updates of this round."""
        return {p.device: p.stored for p in self.doing(Part.STORED) if p.stored is not None}

    @property
    def invited(self) -> dict[str, int]:
        """The devices that this round has asked, with the examples that each announced."""
        return {p.device: p.asked for p in self.where(lambda p: p.invited) if p.asked is not None}

    @property
    def present(self) -> list[Participant]:
        return self.where(lambda one: one.present)

    @property
    def awaited(self) -> list[Participant]:
        return [one for one in self.doing(*AWAITED) if one.invited]

    @property
    def known(self) -> list[str]:
        return [one.device for one in self.where(lambda one: one.known)]


def transitions_table() -> str:
    """The tables of this module as Markdown, for the documentation."""
    lines = ["| attendance | becomes | when |", "|---|---|---|", *_rows(ATTENDANCES)]
    lines += ["", "| part in the round | becomes | when |", "|---|---|---|", *_rows(PARTS)]
    return "\n".join(lines) + "\n"


def _rows(table: Mapping[E, Mapping[E, str]]) -> list[str]:
    return [
        f"| {before.value} | {after.value} | {when} |"
        for before, moves in table.items()
        for after, when in moves.items()
    ]
