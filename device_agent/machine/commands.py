"""Commands of the agent's state machine to its shell: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from fededge.service.events import Note
from fededge.wire.messages import Manifest, State

__all__ = [
    "Abandon",
    "Announce",
    "CheckModel",
    "Command",
    "ExpectModel",
    "Follow",
    "KeepModelChunk",
    "Note",
    "Prepare",
    "SendUpdate",
    "Settle",
    "Train",
    "Unfollow",
]


@dataclass(frozen=True)
class Announce:
    """Publish the device's status."""

    answers: str = ""


@dataclass(frozen=True)
class Prepare:
    """Build the job of this state; the result is Prepared or Unable."""

    state: State


@dataclass(frozen=True)
class ExpectModel:
    """Save the manifest of a version whose chunks are about to come."""

    version: str
    manifest: Manifest


@dataclass(frozen=True)
class Follow:
    """Subscribe to these chunks of a version."""

    version: str
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Unfollow:
    version: str
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class KeepModelChunk:
    """Write a chunk of a model to disk; `checksum` is its CRC-32, if that is known."""

    version: str
    offset: int
    data: bytes | memoryview
    checksum: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class CheckModel:
    """Check a complete model and make it durable; the result is Fetched or Spoiled."""

    version: str
    manifest: Manifest


@dataclass(frozen=True)
class Train:
    """Train from this state's version; the result is Trained, TurnFailed, Spoiled or Abandoned."""

    state: State


@dataclass(frozen=True)
class SendUpdate:
    """Send these chunks of the saved update; with none, its report, which asks for a decision.

    `attached`: the update may travel with its report, if it fits a chunk.
    """

    chunks: tuple[int, ...] = ()
    attached: bool = False


@dataclass(frozen=True)
class Settle:
    """Save the coordinator's decision on the update; the result is Settled or Unsettled.

    Accepted, the private state that depends on it becomes current; otherwise that is dropped.
    `late`: the round is over, and the turn is not taken again.
    """

    accepted: bool
    late: bool = False


@dataclass(frozen=True)
class Abandon:
    """Stop the training: the federation trains something else now, or the device rests.

    The result is Abandoned, or that of a training which was already over.
    """


Command = (
    Announce
    | Prepare
    | ExpectModel
    | Follow
    | Unfollow
    | KeepModelChunk
    | CheckModel
    | Train
    | SendUpdate
    | Settle
    | Abandon
    | Note
)
