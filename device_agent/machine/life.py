"""An agent's life as a state machine without I/O: events in, commands out.

The MQTT shell and the tests drive the same machine. It never looks at a clock: `now` comes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from fededge.errors import WireError
from fededge.wire.chunks import Assembly, check_manifest
from fededge.wire.messages import Manifest, Reply, State, TaskMessage, round_of
from fededge_agent.machine.events import (
    Abandon,
    Abandoned,
    Activity,
    Announce,
    CheckModel,
    ChunkCame,
    ClaimCame,
    Command,
    Connected,
    Event,
    Expect,
    Fetched,
    Follow,
    Keep,
    Note,
    Pending,
    Prepare,
    Prepared,
    ReplyCame,
    SendUpdate,
    Settle,
    Settled,
    Spoiled,
    StateCame,
    TaskCame,
    Tick,
    Train,
    Trained,
    TurnFailed,
    TurnLost,
    Unable,
    Unfollow,
    Unsettled,
)

__all__ = ["Fetch", "Life", "terms"]

UNANSWERED = 10.0
"""Seconds without an answer after which the coordinator is asked for one; then twice that, …"""

MOST_PATIENCE = 320.0
"""… but not more. The link may be gone for a day: not much must pile up meanwhile."""


MOST_FOLLOWED = 16
"""Chunks that the broker is asked for at a time: a task or a reply waits behind no more."""


@dataclass
class Fetch:
    """A version on its way to us, and the chunks of it that the broker was asked for."""

    version: str
    assembly: Assembly
    followed: tuple[int, ...] = ()

    def follow(self) -> list[Command]:
        """Ask for the next chunks that are missing, and for no others."""
        before, self.followed = self.followed, tuple(islice(self.assembly.missing(), MOST_FOLLOWED))
        left: list[Command] = [Unfollow(self.version, before)] if before else []
        return [*left, Follow(self.version, self.followed)]


@dataclass
class Life:
    """What the agent knows, holds and does.

    `pending` is an update that awaits the coordinator's word. Until it has come no other turn is
    taken, for the next one begins from what this one left. `settled` was accepted and is kept, to
    be sent rather than trained again when the coordinator asks twice. `lost`: its file is damaged.
    `late` came too late: a task for it that is still on its way is not taken. `settling`: what the
    coordinator has decided is not on disk yet.
    """

    device: str
    held: str = ""
    pending: Pending | None = None
    settled: Pending | None = None
    late: Pending | None = None
    state: State | None = None
    task: TaskMessage | None = None
    early: TaskMessage | None = None
    prepared: State | None = None
    preparing: State | None = None
    unable: Unable | None = None
    most_bytes: int = 0
    lost: bool = False
    dishonest: Manifest | None = None
    fetch: Fetch | None = None
    checking: str = ""
    training: State | None = None
    settling: bool = False
    failure: str = ""
    sent: float = -math.inf
    patience: float = UNANSWERED

    @property
    def activity(self) -> Activity:
        if self.training is not None:
            return "training"
        if self.unable is not None:
            return "unable"
        if self.prepared is None or self.preparing is not None:
            return "starting"
        if self.failure:
            return "failed"
        return "fetching" if self.fetch is not None or self.checking else "ready"

    @property
    def problem(self) -> str:
        """Why we are unable, or have failed, for the status."""
        return self.failure if self.unable is None else self.unable.reason

    def handle(self, event: Event, now: float) -> list[Command]:
        """What this event leads to; a WireError, and no change, if it is a chunk that is none."""
        before = self.activity
        commands = [*self._take(event, now), *self._next(now)]
        if self.activity != before or isinstance(event, Connected):
            commands.append(Announce())  # after a report: who is sending need not be asked again
        return commands

    def _take(self, event: Event, now: float) -> list[Command]:
        match event:
            case Connected():
                asked = self._inquire(now)
                return asked if event.resumed else [*asked, *self._follow_again(now)]
            case ClaimCame():
                return [Announce(event.instance)]
            case StateCame():
                return self._state(event.state, now)
            case Prepared():
                return self._prepared(event, now)
            case Unable():
                self.prepared = self.preparing = None
                self.unable = event
                return [Note(f"cannot take part: {event.reason}")]
            case TaskCame():
                return self._task(event.task, now)
            case ChunkCame():
                return self._chunk(event, now)
            case Fetched(version):
                self.checking, self.held = "", version
                return []
            case Spoiled():
                return self._spoiled(event, now)
            case Trained():
                return self._trained(event.pending, now)
            case TurnFailed():
                return self._turn_failed(event)
            case Abandoned():
                self.training = None
                return [Note("the turn is abandoned: the federation trains something else now")]
            case Settled():
                return self._settled(event.decision)
            case Unsettled():
                self.settling, self.failure = False, event.reason
                return [Note(f"the coordinator's word cannot be kept: {event.reason}")]
            case TurnLost():
                self.settled, self.lost = None, True
                return []
            case ReplyCame():
                return self._reply(event.reply, now)
            case Tick():
                return self._tick(now)

    # What is asked of us

    def _state(self, state: State, now: float) -> list[Command]:
        self.state = state
        if _asks_for(self.early, state):
            self.task, self.early = self.early, None
        elif not _asks_for(self.task, state):
            self.task = None
        stop: list[Command] = []
        if self.training is not None and terms(self.training) != terms(state):
            stop = [Abandon()]
        return stop + self._go_by(state, now)

    def _go_by(self, state: State, now: float) -> list[Command]:
        """Updates of another run are nobody's; what became of ours, we ask."""
        if self.settled is not None and self.settled.run != state.run:
            self.settled = None
        if self.pending is not None and self.pending.run != state.run:
            return self._drop("the update is of another run of the federation: dropped")
        return self._inquire(now)

    def _prepared(self, event: Prepared, now: float) -> list[Command]:
        self.prepared, self.preparing, self.most_bytes = event.state, None, event.most_bytes
        return self._inquire(now)

    def _task(self, task: TaskMessage, now: float) -> list[Command]:
        """Take a task for the state at hand; one that is ahead of its state waits for it."""
        if self.state is None or not _asks_for(task, self.state):
            if self.state is None or not _outdated(task, self.state):
                self.early = task
            return []
        self.task, self.failure = task, ""
        asked_again = self.settled == Pending(self.state.run, task.version)
        return self._say(SendUpdate(), now) if asked_again or self.pending is not None else []

    def _next(self, now: float) -> list[Command]:
        """What to do now, from all that is known; nothing while the worker is busy."""
        state, task = self.state, self.task
        if state is None or self.preparing is not None or self.training is not None:
            return []
        if self.unable is not None and _same_job(self.unable.state, state):
            return []
        if self.prepared is None or not _same_job(self.prepared, state):
            self.prepared = self.unable = None
            self.preparing, self.failure = state, ""
            return [*self._leave_outdated(state), Prepare(state)]
        stop = self._leave_outdated(state)
        if self.fetch is not None and self.fetch.assembly.complete:
            return self._complete(self.fetch)
        waits = self.settling or (self.pending is not None and not self.lost)
        if waits or self.fetch is not None or self.checking:
            return stop
        if task is not None:
            return stop + self._begin(task, state, now)
        return stop if self.held or self.failure else stop + self._fetch(state, now)

    def _begin(self, task: TaskMessage, state: State, now: float) -> list[Command]:
        """Train if we hold the version, fetch it if not."""
        if Pending(state.run, task.version) in (self.settled, self.late):
            return []
        if self.held == task.version:
            self.training = state
            return [Train(state)]
        return self._fetch(state, now)

    # The model comes: for a task, or because we have none at all

    def _fetch(self, state: State, now: float) -> list[Command]:
        if self.dishonest == state.manifest:
            return []
        try:
            check_manifest(state.manifest, self.most_bytes)
        except WireError as error:
            self.task, self.dishonest = None, state.manifest
            return [Note(f"model {state.version} is not fetched: {error}")]
        self.fetch = Fetch(state.version, Assembly(state.manifest, now))
        return [Expect(state.version, state.manifest), *self.fetch.follow()]

    def _follow_again(self, now: float) -> list[Command]:
        """The broker has forgotten what we follow."""
        if self.fetch is None:
            return []
        self.fetch.assembly.touched, self.fetch.followed = now, ()
        return self.fetch.follow()

    def _leave_outdated(self, state: State) -> list[Command]:
        """The chunks of another version are cleared from the broker: they will not come."""
        fetch = self.fetch
        if fetch is None or (fetch.version, fetch.assembly.facts) == (
            state.version,
            state.manifest,
        ):
            return []
        return self._stop_fetching()

    def _chunk(self, event: ChunkCame, now: float) -> list[Command]:
        fetch = self.fetch
        if fetch is None or event.version != fetch.version:
            return []
        piece = fetch.assembly.take(event.message, now)
        if piece is None:
            return []
        keep = Keep(event.version, *piece)
        come = fetch.assembly.have.issuperset(fetch.followed)
        return [keep, *fetch.follow()] if come and not fetch.assembly.complete else [keep]

    def _complete(self, fetch: Fetch) -> list[Command]:
        self.checking = fetch.version
        return [*self._stop_fetching(), CheckModel(fetch.version, fetch.assembly.facts)]

    def _spoiled(self, event: Spoiled, now: float) -> list[Command]:
        """Fetch it again, but not at once: what is damaged at the broker stays so for a while."""
        self.checking = ""
        if self.held == event.version:
            self.held, self.training = "", None
        note = Note(f"model {event.version} is damaged: {event.reason}")
        if self.state is None or self.state.version != event.version:
            return [note]
        self.fetch = Fetch(event.version, Assembly(self.state.manifest, now))
        return [note, Expect(event.version, self.state.manifest)]

    def _stop_fetching(self) -> list[Command]:
        fetch, self.fetch = self.fetch, None
        return [Unfollow(fetch.version, fetch.followed)] if fetch and fetch.followed else []

    def _turn_failed(self, event: TurnFailed) -> list[Command]:
        """Say so, and wait to be asked again: the coordinator knows when."""
        self.training, self.checking, self.task = None, "", None
        self.failure = event.reason
        return [*self._stop_fetching(), Note(f"the turn failed: {event.reason}")]

    # The update goes

    def _trained(self, pending: Pending, now: float) -> list[Command]:
        self.training, self.settled, self.pending, self.lost = None, None, pending, False
        if self.state is not None and self.state.run != pending.run:
            return self._drop("the run was replaced while we trained: update dropped")
        return self._inquire(now)

    def _inquire(self, now: float) -> list[Command]:
        """Send the report: the answer says what became of the update, or which chunks to send."""
        return self._say(SendUpdate(), now) if self.pending is not None else []

    def _say(self, command: SendUpdate, now: float, patience: float = UNANSWERED) -> list[Command]:
        if self.state is None or self.prepared is None or not _same_job(self.prepared, self.state):
            return []  # the method that says which scalars may leave is not there yet
        self.sent, self.patience = now, patience
        return [command]

    def _reply(self, reply: Reply, now: float) -> list[Command]:
        saved = self.pending or self.settled
        if saved != Pending(reply.run, reply.version):
            return []
        if self.training is not None and self.pending is not None:
            return []  # it was lost: private state, and its file, must not change meanwhile
        if reply.kind == "resend":
            return self._say(SendUpdate(reply.chunks), now) if reply.chunks else []
        if self.task is not None and self.task.version == reply.version:
            self.task = None
        if self.pending is None:
            return []
        if reply.kind == "accepted":
            self.settling = True
            return [Settle(accepted=True)]
        return self._drop(f"update {reply.kind}: {reply.reason}", reply.kind == "late")

    def _drop(self, why: str, late: bool = False) -> list[Command]:
        self.settling = True
        return [Note(why), Settle(accepted=False, late=late)]

    def _settled(self, decision: Settle) -> list[Command]:
        """The update has its answer, on disk too: the next turn may begin from what is there."""
        update, self.pending, self.settling, self.failure = self.pending, None, False, ""
        if decision.accepted:
            self.settled = None if self.lost else update
        elif decision.late:
            self.late = update
        self.lost = False
        return []

    def _tick(self, now: float) -> list[Command]:
        if self.fetch is not None and self.fetch.assembly.overdue(now):
            return self.fetch.follow()
        over = self.state is None or self.state.phase == "done"  # nobody is there to answer
        if self.pending is None or over or now - self.sent < self.patience:
            return []
        return self._say(SendUpdate(), now, min(2 * self.patience, MOST_PATIENCE))


def terms(state: State) -> tuple[object, ...]:
    """What a run is, and stays: its identity, and all that decides what a turn gives."""
    return state.run, state.seed, *_job(state)


def _asks_for(task: TaskMessage | None, state: State) -> bool:
    return task is not None and (task.run, task.version) == (state.run, state.version)


def _outdated(task: TaskMessage, state: State) -> bool:
    """Whether a task is of a round that is over: a repetition, or it was long on its way."""
    return task.run == state.run and round_of(task.version) < round_of(state.version)


def _same_job(a: State, b: State) -> bool:
    """Whether what was built for one state serves the other."""
    return _job(a) == _job(b)


def _job(state: State) -> tuple[object, ...]:
    return (
        state.model,
        state.layout,
        state.method,
        state.files,
        state.encoding,
        state.training,
    )
