"""Events that the coordinator's rounds handle, and commands that they return: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fededge.service.events import Note, Tick
from fededge.wire.messages import Reply, Report, Status
from fededge_server.machine.rounds.schedule_events import TimeOfDay, Woke

__all__ = [
    "ACCURACY",
    "Bad",
    "Check",
    "Command",
    "Discard",
    "Evaluate",
    "Event",
    "ExpectUpdate",
    "Full",
    "Invite",
    "Judge",
    "KeepUpdateChunk",
    "Merge",
    "MergeDone",
    "Note",
    "PublishState",
    "RefusalWritten",
    "Refuse",
    "Remember",
    "Remembered",
    "ReportCame",
    "Retire",
    "RolledBack",
    "RoundOpened",
    "RunFinished",
    "SendReply",
    "SetAside",
    "StatusCame",
    "Stored",
    "Tick",
    "TimeOfDay",
    "UpdateChunkCame",
    "Woke",
]

ACCURACY = "personal_accuracy"
"""The scalar with the accuracy of a device's own model; a device without examples has none."""
NO_BYTES = memoryview(b"")
# Events


@dataclass(frozen=True)
class StatusCame:
    """A device's status; `retained`: the broker kept it, and the device may be long gone."""

    device: str
    status: Status
    retained: bool = False


@dataclass(frozen=True)
class ReportCame:
    """A report, and the only chunk of its update if that came along; unchecked, empty if not."""

    device: str
    report: Report
    chunk: memoryview = NO_BYTES


@dataclass(frozen=True)
class UpdateChunkCame:
    device: str
    version: str
    message: bytes


@dataclass(frozen=True)
class Stored:
    """A complete update was checked; it and its report are on disk. `norm`: of its change."""

    device: str
    report: Report
    norm: float = 0.0


@dataclass(frozen=True)
class Bad:
    """A complete update did not pass its check. An empty version is the round's."""

    device: str
    reason: str
    version: str = ""


@dataclass(frozen=True)
class Full:
    """The disk is full, or no longer: nothing is taken meanwhile."""

    full: bool


@dataclass(frozen=True)
class MergeDone:
    """The round ended with this version, which is on disk, made of these devices' updates.

    `refused`: devices whose accepted updates had to be left out, and why. The journal has it.
    """

    version: str
    devices: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    score: float | None = None


@dataclass(frozen=True)
class RolledBack:
    """The run goes on from this version, which is on disk and repeats an earlier one's model."""

    version: str
    reason: str


@dataclass(frozen=True)
class RefusalWritten:
    """The journal has the refusal of this update."""

    device: str
    version: str


@dataclass(frozen=True)
class Remembered:
    """The journal has who was asked for a version, with their examples, and who is known."""

    version: str
    asked: Mapping[str, int]
    known: tuple[str, ...]


Outcome = Stored | Bad | RefusalWritten | Remembered | MergeDone | RolledBack | Full
Event = StatusCame | ReportCame | UpdateChunkCame | Outcome | Tick | TimeOfDay

# Commands


@dataclass(frozen=True)
class Remember:
    """Write down who is asked for a version, with their examples, and who is known.

    A coordinator that restarts needs both. These are added to what the journal has; the answer is
    Remembered, and what was not answered is written again.
    """

    round: int
    version: str
    asked: Mapping[str, int]
    known: tuple[str, ...]


@dataclass(frozen=True)
class RoundOpened:
    """Tell the world that a round is open, or stays open longer."""

    round: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Invite:
    device: str
    round: int
    version: str


@dataclass(frozen=True)
class SendReply:
    device: str
    reply: Reply


@dataclass(frozen=True)
class ExpectUpdate:
    """Write down the report of an update whose chunks are to come; none has come yet."""

    device: str
    report: Report


@dataclass(frozen=True)
class KeepUpdateChunk:
    """Write a piece of an update, with its CRC-32 if that is known."""

    device: str
    version: str
    offset: int
    data: bytes | memoryview
    checksum: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SetAside:
    """Say that a bug was met: an event was dropped, and the round goes on without the device.

    `move` is the move that the table of participants does not have.
    """

    device: str
    move: str


@dataclass(frozen=True)
class Check:
    """Check a complete update, in `data` or else in the spool; make it durable; Stored or Bad."""

    device: str
    report: Report
    data: memoryview = NO_BYTES


@dataclass(frozen=True)
class Refuse:
    """Write down that an update was refused, and whether its device is quarantined for it.

    The answer is RefusalWritten.
    """

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
    """Make the next version of these updates, and answer with MergeDone.

    A report that names an earlier version than the current one is of a late update.
    `norms` are those of the changes. `devices` is how many the federation has, taking part or not.
    """

    round: int
    reports: Mapping[str, Report]
    norms: Mapping[str, float]
    devices: int


@dataclass(frozen=True)
class Judge:
    """A round with this version is over, or has failed: tell a good version from a bad one.

    `failed` of the `asked` devices could not train from it; others reported their `accuracies`.
    """

    version: str
    asked: int
    failed: int
    accuracies: Mapping[str, float]


@dataclass(frozen=True)
class Evaluate:
    """Judge a new version by the coordinator's own examples."""

    version: str


@dataclass(frozen=True)
class Retire:
    """A version is over: clean up after it, and publish the model of the next one.

    `keep`: versions whose updates may still be needed.
    """

    version: str
    keep: frozenset[str]


@dataclass(frozen=True)
class PublishState:
    """Tell the world where the federation stands."""


@dataclass(frozen=True)
class RunFinished:
    """All rounds are done."""


Writing = Remember | Woke | ExpectUpdate | KeepUpdateChunk | Refuse | Discard
Telling = RoundOpened | Invite | SendReply | SetAside | PublishState | RunFinished | Note
Command = Writing | Telling | Check | Merge | Judge | Evaluate | Retire
