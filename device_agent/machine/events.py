"""Events that the agent's state machine takes: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from fededge.service.events import Tick
from fededge.wire.messages import Reply, State, TaskMessage
from fededge_agent.machine.commands import Settle

__all__ = [
    "Abandoned",
    "Activity",
    "Cause",
    "CauseGone",
    "ClaimCame",
    "DownloadFailed",
    "Event",
    "Fetched",
    "GateClosed",
    "GateOpened",
    "LinkUp",
    "ModelChunkCame",
    "Pending",
    "Prepared",
    "ReplyCame",
    "Settled",
    "Spoiled",
    "StateCame",
    "TaskCame",
    "Tick",
    "Trained",
    "TurnFailed",
    "TurnLost",
    "Unable",
    "Unsent",
    "Unsettled",
]

Activity = Literal["starting", "unable", "resting", "ready", "fetching", "training", "failed"]

MOST_MODEL = 16 * 1024**3
"""Bytes of a model, where no layout limits it."""


class Cause(Enum):
    """The reason why a device cannot run a job; it decides when the preparation is retried."""

    JOB = "job"  # when there is another job
    DATA = "data"  # when the data has changed, and now and then
    DISK = "disk"  # every minute
    BOX = "box"  # a lack of memory, a GPU that failed: now and then


@dataclass(frozen=True)
class Pending:
    """An update on disk, named by its run and the version that it was trained from."""

    run: str
    version: str


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
class GateClosed:
    """The box's own conditions forbid a turn now, or go on forbidding it for another reason."""

    reason: str


@dataclass(frozen=True)
class GateOpened:
    """The box's own conditions allow a turn."""


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
    cause: Cause = Cause.JOB


@dataclass(frozen=True)
class CauseGone:
    """The device's data has changed since the preparation failed because of it."""


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
    | GateClosed
    | GateOpened
    | CauseGone
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
