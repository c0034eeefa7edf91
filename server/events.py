"""What the coordinator's rounds hear and what they ask for: plain values, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fededge.wire.messages import Reply, Report, Status

__all__ = [
    "Answer",
    "Bad",
    "Check",
    "ChunkCame",
    "Command",
    "Discard",
    "Event",
    "Expect",
    "Facts",
    "Finish",
    "Full",
    "Invite",
    "Keep",
    "Memory",
    "Merge",
    "Merged",
    "Note",
    "Open",
    "Refuse",
    "Remember",
    "ReportCame",
    "StatusCame",
    "Stored",
    "Tick",
]


# Events


@dataclass(frozen=True)
class StatusCame:
    device: str
    status: Status


@dataclass(frozen=True)
class ReportCame:
    device: str
    report: Report


@dataclass(frozen=True)
class ChunkCame:
    device: str
    version: str
    message: bytes


@dataclass(frozen=True)
class Stored:
    """A complete update was checked; it and its report are on disk."""

    device: str
    report: Report


@dataclass(frozen=True)
class Bad:
    """A complete update did not pass its check. No version: that of the round."""

    device: str
    reason: str
    version: str = ""


@dataclass(frozen=True)
class Full:
    """The disk is full, or no longer: nothing is taken meanwhile."""

    full: bool


@dataclass(frozen=True)
class Merged:
    """The round's updates became this version, which is on disk."""

    version: str


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = StatusCame | ReportCame | ChunkCame | Stored | Bad | Merged | Full | Tick


# Commands


@dataclass(frozen=True)
class Remember:
    """Write down whom a round asks and who is known: a coordinator that starts again needs it."""

    round: int
    invited: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(frozen=True)
class Open:
    """Tell the world that a round is open, or stays open longer."""

    round: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Invite:
    device: str
    round: int
    version: str


@dataclass(frozen=True)
class Answer:
    device: str
    reply: Reply


@dataclass(frozen=True)
class Expect:
    """The chunks of an update are to come: write down its report, and that none has come."""

    device: str
    report: Report


@dataclass(frozen=True)
class Keep:
    """Write a piece of an update to the spool."""

    device: str
    version: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Check:
    """The update is complete: check it, make it and its report durable, answer Stored or Bad."""

    device: str
    report: Report


@dataclass(frozen=True)
class Refuse:
    """Write down that an update was refused, and whether its device is quarantined for it."""

    device: str
    version: str
    reason: str
    quarantined: bool


@dataclass(frozen=True)
class Discard:
    """Forget what was kept of an update."""

    device: str
    version: str


@dataclass(frozen=True)
class Merge:
    """Make the next version of these updates, and answer with Merged.

    A report that names an earlier version than the current one is of a late update.
    `devices` is how many the federation has, taking part or not.
    """

    round: int
    reports: Mapping[str, Report]
    devices: int


@dataclass(frozen=True)
class Finish:
    """All rounds are done."""


@dataclass(frozen=True)
class Note:
    """For the log: something happened that a person may ask about."""

    text: str
    device: str = ""


Command = (
    Remember
    | Open
    | Invite
    | Answer
    | Expect
    | Keep
    | Check
    | Refuse
    | Discard
    | Merge
    | Finish
    | Note
)


# What the rounds are told at their start


@dataclass(frozen=True)
class Facts:
    """What does not change during a run."""

    run: str
    seed: int
    layout: str
    scalars: frozenset[str]
    chunk_bytes: int
    payload_limit: int


@dataclass(frozen=True)
class Memory:
    """What a coordinator that starts again knows: of the round that was open, and of its devices.

    `accepted` holds each device's last accepted update, of this round or an earlier one; `stored`
    names those that no version has been made of yet. `recent` are the last versions, by round;
    `coming` are the updates that were on their way, with the chunks that had come.
    """

    invited: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    accepted: Mapping[str, Report] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()
    recent: Mapping[str, int] = field(default_factory=dict)
    quarantined: frozenset[str] = frozenset()
    coming: Mapping[str, tuple[Report, frozenset[int]]] = field(default_factory=dict)
