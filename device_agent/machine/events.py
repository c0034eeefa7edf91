"""What an agent's life hears and what it asks for: plain values, no behaviour."""

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
    "ChunkCame",
    "ClaimCame",
    "Command",
    "Connected",
    "Event",
    "Expect",
    "Fetched",
    "Follow",
    "Keep",
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
    "Unsettled",
]

Activity = Literal["starting", "unable", "ready", "fetching", "training", "failed"]

MOST_MODEL = 16 * 1024**3
"""Bytes of a model where the layout is not asked what it can honestly take."""


@dataclass(frozen=True)
class Pending:
    """An update that is on disk, by what it was trained from."""

    run: str
    version: str


# Events


@dataclass(frozen=True)
class Connected:
    """The broker took us in; `resumed`: it still has what we follow, and what came meanwhile."""

    resumed: bool = False


@dataclass(frozen=True)
class StateCame:
    state: State


@dataclass(frozen=True)
class TaskCame:
    task: TaskMessage


@dataclass(frozen=True)
class ChunkCame:
    version: str
    message: bytes


@dataclass(frozen=True)
class ReplyCame:
    reply: Reply


@dataclass(frozen=True)
class ClaimCame:
    """A process asks who holds our name."""

    instance: str


@dataclass(frozen=True)
class Prepared:
    """Network, data and export are ready for what this state describes."""

    state: State
    most_bytes: int = MOST_MODEL


@dataclass(frozen=True)
class Unable:
    """This device cannot run what this state describes; another state may serve."""

    state: State
    reason: str


@dataclass(frozen=True)
class Fetched:
    """A version of the global model was checked and is on disk."""

    version: str


@dataclass(frozen=True)
class Spoiled:
    """A version came whole but is not what its manifest says, or its file no longer is."""

    version: str
    reason: str


@dataclass(frozen=True)
class Trained:
    """A turn is over: its update and private state are on disk together."""

    pending: Pending


@dataclass(frozen=True)
class TurnLost:
    """The saved update can no longer be read: the turn is as if it had not been taken."""


@dataclass(frozen=True)
class TurnFailed:
    """A turn came to nothing: it could not be trained, or not be kept."""

    version: str
    reason: str


@dataclass(frozen=True)
class Abandoned:
    """A turn was stopped: it is as if it had not been begun."""


@dataclass(frozen=True)
class Settled:
    """What the coordinator has decided is on disk."""

    decision: Settle


@dataclass(frozen=True)
class Unsettled:
    """It could not be put there: the update still awaits its answer, which is asked for again."""

    reason: str


Event = (
    Connected
    | StateCame
    | TaskCame
    | ChunkCame
    | ReplyCame
    | ClaimCame
    | Prepared
    | Unable
    | Fetched
    | Spoiled
    | Trained
    | TurnFailed
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
    """Build what this state describes, and answer with Prepared or Unable."""

    state: State


@dataclass(frozen=True)
class Expect:
    """The chunks of a version are to come: write down how to check them."""

    version: str
    manifest: Manifest


@dataclass(frozen=True)
class Follow:
    """Subscribe to chunks of a version."""

    version: str
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Unfollow:
    version: str
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Keep:
    """Write a piece of a model to disk."""

    version: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class CheckModel:
    """The model is complete: check it, make it durable, and answer with Fetched or Spoiled."""

    version: str
    manifest: Manifest


@dataclass(frozen=True)
class Train:
    """Take the turn of this state's version; answer with Trained or TurnFailed.

    Its update and private state are saved by then.
    """

    state: State


@dataclass(frozen=True)
class SendUpdate:
    """Send these chunks of the saved update; none: its report, which asks which are wanted."""

    chunks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settle:
    """The coordinator has decided on the saved update: keep or drop what follows it.

    `late`: its round is over, and its turn is not taken again.
    """

    accepted: bool
    late: bool = False


@dataclass(frozen=True)
class Abandon:
    """What is being trained is not what the federation trains any more: stop it.

    The training answers with Abandoned, or as ever if it was over.
    """


Command = (
    Announce
    | Prepare
    | Expect
    | Follow
    | Unfollow
    | Keep
    | CheckModel
    | Train
    | SendUpdate
    | Settle
    | Abandon
    | Note
)
