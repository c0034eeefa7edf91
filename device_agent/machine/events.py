"""Events and commands of the agent's state machine: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fededge.service.events import Note, Tick
from fededge.wire.messages import Manifest, Reply, State, TaskMessage

__all__ = [
    "Abandon",
    "Abandoned",
    "Activity",
    "Announce",
    "CheckModel",
    "ClaimCame",
    "Command",
    "DownloadFailed",
    "Event",
    "ExpectModel",
    "Fetched",
    "Follow",
    "KeepModelChunk",
    "LinkUp",
    "ModelChunkCame",
    "Note",
    "Pending",
    "Prepare",
    "Prepared",
    "ReplyCame",
    "SendUpdate",
    "Settle",
    "Settled",
    "Spoiled",
    "StateCame",
    "TaskCame",
    "Tick",
    "Train",
    "Trained",
    "TurnFailed",
    "TurnLost",
    "Unable",
    "Unfollow",
    "Unsent",
    "Unsettled",
]

Activity = Literal["starting", "unable", "ready", "fetching", "training", "failed"]

MOST_MODEL = 16 * 1024**3
"""Bytes of a model, where no layout limits it."""


@dataclass(frozen=True)
class Pending:
    """An update on disk, named by its run and the version that it was trained from."""

    run: str
    version: str


# Events


@dataclass(frozen=True)
class LinkUp:
    """The broker accepted us; `resumed`: it kept our subscriptions and queued messages."""

    resumed: bool = False


@dataclass(frozen=True)
class StateCame:
    state: State


@dataclass(frozen=True)
class TaskCame:
    task: TaskMessage


@dataclass(frozen=True)
class ModelChunkCame:
    version: str
    message: bytes


@dataclass(frozen=True)
class ReplyCame:
    reply: Reply


@dataclass(frozen=True)
class ClaimCame:
    """A starting process asks who holds our name; the status answers with its nonce."""

    instance: str


@dataclass(frozen=True)
class Prepared:
    """Network, data and export are ready for the job of this state.

    No model of that job is larger than `most_bytes`.
    """

    state: State
    most_bytes: int = MOST_MODEL


@dataclass(frozen=True)
class Unable:
    """This device cannot run the job of this state; it may be able to run another."""

    state: State
    reason: str


@dataclass(frozen=True)
class Fetched:
    """A version of the global model is checked and durable."""

    version: str


@dataclass(frozen=True)
class Spoiled:
    """A version does not match its manifest: as it came, or as its file is now."""

    version: str
    reason: str


@dataclass(frozen=True)
class Trained:
    """A turn was trained: its update and private state are on disk together."""

    pending: Pending


@dataclass(frozen=True)
class TurnLost:
    """The file of the saved update is unreadable: the turn must be taken again."""


@dataclass(frozen=True)
class TurnFailed:
    """The training failed, or its result could not be saved."""

    reason: str


@dataclass(frozen=True)
class DownloadFailed:
    """The disk is full: a model could not be saved."""

    reason: str


@dataclass(frozen=True)
class Unsent:
    """The disk is full: the ledger could not be written, so the update was not sent."""

    reason: str


@dataclass(frozen=True)
class Abandoned:
    """The training was stopped, and left nothing behind."""


@dataclass(frozen=True)
class Settled:
    """The coordinator's decision is on disk."""

    decision: Settle


@dataclass(frozen=True)
class Unsettled:
    """The disk is full: the coordinator's decision could not be saved, and is asked for again."""

    reason: str


Event = (
    LinkUp
    | StateCame
    | TaskCame
    | ModelChunkCame
    | ReplyCame
    | ClaimCame
    | Prepared
    | Unable
    | Fetched
    | Spoiled
    | Trained
    | TurnFailed
    | DownloadFailed
    | Unsent
    | TurnLost
    | Abandoned
    | Settled
    | Unsettled
    | Tick
)


# Commands


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
    """Write a chunk of a model to disk."""

    version: str
    offset: int
    data: bytes


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
    """Send these chunks of the saved update; with none, its report, which asks for a decision."""

    chunks: tuple[int, ...] = ()


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
    """Stop the training: the federation trains something else now.

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
