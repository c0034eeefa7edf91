"""The states of a device at the coordinator, as tables: its attendance, its part in the round."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from fededge_server.machine.fleet.standings import STANDINGS

__all__ = ["AWAITED", "OUT", "PARTS", "Attendance", "Part", "transitions_table"]

E = TypeVar("E", bound=enum.Enum)


class Attendance(enum.Enum):
    """A device is online by its status, and by a lease that every sign of life renews.

    A resting device is online, but its own conditions forbid a turn now.
    """

    ABSENT = "absent"
    PRESENT = "present"
    RESTING = "resting"


class Part(enum.Enum):
    """A device's part in the round that is open."""

    IDLE = "idle"
    INVITED = "invited"
    BACKOFF = "in backoff"
    SENDING = "sending"
    CHECKING = "checking"
    STORED = "stored"
    REFUSED = "refused"
    EXCUSED = "excused"
    FAILED = "failed"
    QUARANTINED = "quarantined"

    __hash__ = object.__hash__  # as that of `Group`


OVER = "the round ends"
EXTENDED = "the deadline passes without a quorum"
FULL = "the disk is full"
RESTS = "it says that it rests"
ORDERED = "an operator quarantines, revokes or forgets it"
DRAINED = "an operator has drained it, and it has no turn under way"

PARTS: Mapping[Part, Mapping[Part, str]] = {
    Part.IDLE: {
        Part.STORED: "a restarted coordinator finds its update on disk",
        Part.INVITED: "the round asks the device",
        Part.SENDING: "its update for an earlier version, or from before a restart, is expected",
        Part.EXCUSED: "a restarted round had asked it, and it rests since",
        Part.QUARANTINED: "a restarted round had asked it, and it is in quarantine since",
    },
    Part.INVITED: {
        Part.SENDING: "its report comes",
        Part.BACKOFF: "it says that its turn failed",
        Part.EXCUSED: f"{RESTS}, or {DRAINED}",
        Part.QUARANTINED: ORDERED,
        Part.FAILED: "it cannot take part, or its turn failed too often",
        Part.IDLE: OVER,
    },
    Part.BACKOFF: {
        Part.INVITED: "its backoff is over and it is asked again",
        Part.SENDING: "its report comes",
        Part.EXCUSED: f"{RESTS}, or {DRAINED}",
        Part.QUARANTINED: ORDERED,
        Part.FAILED: "it cannot take part",
        Part.IDLE: OVER,
    },
    Part.EXCUSED: {
        Part.INVITED: f"it is ready again and the round has a place for it, or {EXTENDED}",
        Part.SENDING: "its report comes",
        Part.QUARANTINED: ORDERED,
        Part.IDLE: OVER,
    },
    Part.SENDING: {
        Part.CHECKING: "its last chunk comes",
        Part.INVITED: FULL,
        Part.QUARANTINED: ORDERED,
        Part.IDLE: f"{FULL} and the round did not ask it, or {OVER} and the update is too late, or "
        + ORDERED,
    },
    Part.CHECKING: {
        Part.STORED: "the update is on disk",
        Part.REFUSED: "the update does not pass its check",
        Part.INVITED: FULL,
        Part.IDLE: f"{FULL} and the round did not ask it",
    },
    Part.STORED: {
        Part.REFUSED: "the update is an outlier, or no version can be made with it",
        Part.QUARANTINED: ORDERED,
        Part.IDLE: f"{OVER}, or {ORDERED}",
    },
    Part.REFUSED: {
        Part.INVITED: EXTENDED,
        Part.BACKOFF: f"{EXTENDED}, and the device is in backoff",
        Part.EXCUSED: f"{EXTENDED}, and the device rests",
        Part.QUARANTINED: f"{EXTENDED}, and the device is in quarantine, or {ORDERED}",
        Part.IDLE: f"{OVER}, or {ORDERED}, or {EXTENDED} and the round did not ask it",
    },
    Part.FAILED: {
        Part.INVITED: EXTENDED,
        Part.BACKOFF: f"{EXTENDED}, and the device is in backoff",
        Part.SENDING: "its report comes",
        Part.EXCUSED: f"{EXTENDED}, and the device rests",
        Part.QUARANTINED: f"{EXTENDED}, and the device is in quarantine, or {ORDERED}",
        Part.IDLE: OVER,
    },
    Part.QUARANTINED: {
        Part.INVITED: f"{EXTENDED}, and its quarantine is over",
        Part.BACKOFF: f"{EXTENDED}, its quarantine is over, and the device is in backoff",
        Part.SENDING: "its quarantine is over, and its report comes",
        Part.EXCUSED: f"{EXTENDED}, its quarantine is over, and the device rests",
        Part.IDLE: OVER,
    },
}
"""The moves from one part to the next, with their reasons. Any other move is a bug."""

ONLINE = "a status says that it is online, with our layout"
GONE = "a status or a last will says that it left or cannot take part, or its lease runs out"

ATTENDANCES: Mapping[Attendance, Mapping[Attendance, str]] = {
    Attendance.ABSENT: {
        Attendance.PRESENT: ONLINE,
        Attendance.RESTING: RESTS,
    },
    Attendance.PRESENT: {
        Attendance.RESTING: RESTS,
        Attendance.ABSENT: GONE,
    },
    Attendance.RESTING: {
        Attendance.PRESENT: ONLINE,
        Attendance.ABSENT: GONE,
    },
}

AWAITED = frozenset({Part.INVITED, Part.BACKOFF, Part.SENDING, Part.CHECKING})
"""Parts of devices that a round waits for, if it has asked them."""

OUT = frozenset({Part.EXCUSED, Part.FAILED, Part.REFUSED, Part.QUARANTINED})
"""Parts of devices that a round has asked, and does not wait for any more."""


def transitions_table() -> str:
    """The tables of this module as Markdown, for the documentation."""
    lines = ["| attendance | becomes | when |", "|---|---|---|", *_rows(ATTENDANCES)]
    lines += ["", "| part in the round | becomes | when |", "|---|---|---|", *_rows(PARTS)]
    lines += ["", "| standing | becomes | by the order |", "|---|---|---|", *_rows(STANDINGS)]
    return "\n".join(lines) + "\n"


def _rows(table: Mapping[E, Mapping[E, str]]) -> list[str]:
    return [
        f"| {before.value} | {after.value} | {when} |"
        for before, moves in table.items()
        for after, when in moves.items()
    ]
