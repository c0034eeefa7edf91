"""An agent's life as a state machine without I/O: events in, commands out.

The MQTT shell and the tests drive the same machine. It never looks at a clock: `now` comes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fededge.errors import WireError
from fededge.wire.chunks import Assembly, unpack
from fededge.wire.messages import Manifest, Reply, State, TaskMessage

__all__ = [
    "Announce",
    "CheckModel",
    "ChunkCame",
    "ClaimCame",
    "Command",
    "Connected",
    "Event",
    "Fetched",
    "Follow",
    "Halt",
    "Keep",
    "Life",
    "Note",
    "Pending",
    "Prepare",
    "Prepared",
    "ReplyCame",
    "SendUpdate",
    "Settle",
    "Spoiled",
    "StateCame",
    "TaskCame",
    "Tick",
    "Train",
    "Trained",
    "Unfollow",
]

STALLED = 5.0
"""Seconds without a chunk after which a version is subscribed to anew."""

UNANSWERED = 10.0
"""Seconds without an answer after which an update is sent again."""


# Events


@dataclass(frozen=True)
class Connected:
    pass


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
    instance: str


@dataclass(frozen=True)
class Prepared:
    """Network, data and export are ready for what this state describes."""

    state: State


@dataclass(frozen=True)
class Fetched:
    """A version of the global model was checked and is on disk."""

    version: str


@dataclass(frozen=True)
class Spoiled:
    """A version came whole but is not what its manifest says."""

    version: str
    reason: str


@dataclass(frozen=True)
class Trained:
    """A turn is over: its update and private state are on disk together."""

    pending: Pending


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = (
    Connected
    | StateCame
    | TaskCame
    | ChunkCame
    | ReplyCame
    | ClaimCame
    | Prepared
    | Fetched
    | Spoiled
    | Trained
    | Tick
)


# Commands


@dataclass(frozen=True)
class Announce:
    """Publish the device's status."""

    answers: str = ""


@dataclass(frozen=True)
class Prepare:
    """Build what this state describes, and answer with Prepared."""

    state: State


@dataclass(frozen=True)
class Follow:
    """Subscribe to the chunks of a version."""

    version: str


@dataclass(frozen=True)
class Unfollow:
    version: str


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
    """Take the turn, save its update and private state, and answer with Trained."""

    task: TaskMessage
    state: State


@dataclass(frozen=True)
class SendUpdate:
    """Send the report and the chunks of the saved update, or only these chunks."""

    chunks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Settle:
    """The coordinator has decided on the saved update: keep or drop what follows it."""

    accepted: bool


@dataclass(frozen=True)
class Halt:
    """This agent cannot take part; a person must look at it."""

    reason: str


@dataclass(frozen=True)
class Note:
    text: str


Command = (
    Announce
    | Prepare
    | Follow
    | Unfollow
    | Keep
    | CheckModel
    | Train
    | SendUpdate
    | Settle
    | Halt
    | Note
)

Activity = Literal["starting", "ready", "fetching", "training"]


@dataclass(frozen=True)
class Pending:
    """An update that is on disk and not yet decided on."""

    run: str
    version: str


@dataclass
class Life:
    """What the agent knows, holds and does."""

    device: str
    held: str = ""
    pending: Pending | None = None
    activity: Activity = "starting"
    state: State | None = None
    preparing: State | None = None
    prepared: State | None = None
    task: TaskMessage | None = None
    assembly: Assembly | None = None
    touched: float = 0.0
    sent: float = 0.0

    def handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case Connected():
                return [Announce(), *self._send_again(now)]
            case ClaimCame():
                return [Announce(event.instance)]
            case StateCame():
                return self._state(event.state, now)
            case Prepared():
                return self._prepared(event.state, now)
            case TaskCame():
                return self._task(event.task, now)
            case ChunkCame():
                return self._chunk(event, now)
            case Fetched():
                return self._fetched(event.version, now)
            case Spoiled():
                return [Note(f"model {event.version} is damaged: {event.reason}"), *self._go(now)]
            case Trained():
                return self._trained(event.pending, now)
            case ReplyCame():
                return self._reply(event.reply, now)
            case Tick():
                return self._tick(now)

    # What is asked of us

    def _state(self, state: State, now: float) -> list[Command]:
        self.state = state
        if self.preparing is None and not (self.prepared and _same_job(self.prepared, state)):
            self.preparing = state
            self.activity = "starting"
            return [Prepare(state)]
        return self._go(now)

    def _prepared(self, state: State, now: float) -> list[Command]:
        self.prepared, self.preparing = state, None
        if self.state is not None and not _same_job(state, self.state):
            return self._state(self.state, now)
        self.activity = "ready"
        return [Announce(), *self._go(now)]

    def _task(self, task: TaskMessage, now: float) -> list[Command]:
        if task.device != self.device:
            return [Note(f"a task for device '{task.device}' came on our topic: dropped")]
        self.task = task
        return self._go(now)

    def _go(self, now: float) -> list[Command]:
        """Do the next thing for the task, if there is one and we are free."""
        task, state = self.task, self.state
        if task is None or state is None or self.activity != "ready":
            return []
        if task.version != state.version:
            return []  # the state of that version is still on its way, or the task is outdated
        if self.pending == Pending(state.run, task.version):
            return self._send(now)
        if self.held == task.version:
            self.activity = "training"
            return [Announce(), Train(task, state)]
        self.activity = "fetching"
        self.assembly = Assembly(state.manifest)
        self.touched = now
        return [Follow(task.version)]

    # The model comes

    def _chunk(self, event: ChunkCame, now: float) -> list[Command]:
        task = self.task
        if task is None or self.assembly is None or event.version != task.version:
            return []
        try:
            chunk = unpack(event.message)
            offset = self.assembly.offset(chunk)
        except WireError as error:
            return [Note(f"chunk dropped: {error}")]
        self.touched = now
        if offset is None:
            return []
        self.assembly.have.add(chunk.index)
        keep = Keep(event.version, offset, bytes(chunk.data))
        if not self.assembly.complete:
            return [keep]
        manifest, self.assembly = self.assembly.facts, None
        self.activity = "ready"
        return [keep, Unfollow(event.version), CheckModel(event.version, manifest)]

    def _fetched(self, version: str, now: float) -> list[Command]:
        self.held = version
        return self._go(now)

    # The update goes

    def _trained(self, pending: Pending, now: float) -> list[Command]:
        self.pending = pending
        self.activity = "ready"
        if self.task is not None and self.task.version != pending.version:
            return [Note(f"round of {pending.version} is over"), *self._drop(), *self._go(now)]
        return [*self._send(now), Announce()]

    def _send(self, now: float) -> list[Command]:
        self.sent = now
        return [SendUpdate()]

    def _send_again(self, now: float) -> list[Command]:
        return self._send(now) if self.pending is not None else []

    def _reply(self, reply: Reply, now: float) -> list[Command]:
        if reply.fatal:
            return [Halt(reply.reason)]
        if self.pending is None or reply.version != self.pending.version:
            return []
        if reply.kind == "resend":
            self.sent = now
            return [SendUpdate(reply.chunks)]
        self.task = None
        if reply.kind == "accepted":
            self.pending = None
            return [Settle(accepted=True)]
        return [Note(f"update {reply.kind}: {reply.reason}"), *self._drop()]

    def _drop(self) -> list[Command]:
        self.pending = None
        return [Settle(accepted=False)]

    def _tick(self, now: float) -> list[Command]:
        if self.activity == "fetching" and now - self.touched >= STALLED and self.task is not None:
            self.touched = now
            if self.state is None or self.state.version != self.task.version:
                old, self.task, self.assembly, self.activity = self.task, None, None, "ready"
                return [Note(f"version {old.version} is over"), Unfollow(old.version)]
            return [Unfollow(self.task.version), Follow(self.task.version)]
        if self.pending is not None and now - self.sent >= UNANSWERED:
            return self._send(now)
        return []


def _same_job(a: State, b: State) -> bool:
    """Whether what was built for one state serves the other."""
    return (a.model, a.layout, a.method) == (b.model, b.layout, b.method)
