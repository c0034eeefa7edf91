"""The agent's state machine: rest, preparation, download and turn behind one `handle`.

It does no I/O and reads no clock: events and the time come in, commands go out. The MQTT shell and
the fault simulation drive the same machine.
"""

from __future__ import annotations

from fededge.errors import WireError
from fededge.wire.messages import Reply, State, TaskMessage
from fededge_agent.machine.assignment import Assignment
from fededge_agent.machine.commands import Announce, Command, Note, SendUpdate, Settle, Unfollow
from fededge_agent.machine.download import Download, IncomingModel
from fededge_agent.machine.events import (
    Abandoned,
    Activity,
    CauseGone,
    ClaimCame,
    DownloadFailed,
    Event,
    Fetched,
    GateClosed,
    GateOpened,
    LinkUp,
    ModelChunkCame,
    Pending,
    Prepared,
    ReplyCame,
    Settled,
    Spoiled,
    StateCame,
    TaskCame,
    Tick,
    Trained,
    TurnFailed,
    TurnLost,
    Unable,
    Unsent,
    Unsettled,
)
from fededge_agent.machine.preparation import Preparation
from fededge_agent.machine.rest import Rest
from fededge_agent.machine.turn import DeviceTurn
from fededge_agent.machine.view import AgentView

__all__ = ["AgentMachine"]

ANNOUNCED = (LinkUp, GateClosed, DownloadFailed, TurnFailed, Unsent, Unsettled)
"""Events that the status tells of, even if the activity stays the same."""

PLACES: dict[type[Command], int] = {Unfollow: -1, SendUpdate: 1, Announce: 2, Settle: 3}
"""The order within a batch; 0 for all others.

A command that finds the disk full drops those behind it: only commands that rely on it come later.
The status follows the report: the coordinator need not ask a device whose update is on its way.
"""


class AgentMachine:
    """Takes events, returns commands. `failure` says why the last attempt failed.

    `resting` says why the device may not train at its start; empty if it may.
    """

    def __init__(
        self,
        held: str = "",
        pending: Pending | None = None,
        last_accepted: Pending | None = None,
        missed: Pending | None = None,
        incoming: IncomingModel | None = None,
        resting: str = "",
    ) -> None:
        self.rest = Rest(resting)
        self.assignment = Assignment()
        self.preparation = Preparation()
        self.download = Download(held, incoming)
        self.turn = DeviceTurn(pending, last_accepted, missed)
        self.failure = ""

    @property
    def view(self) -> AgentView:
        state = self.assignment.state
        problem = self.preparation.reason or self.rest.reason or self.failure
        lease = None if state is None else state.lease
        return AgentView(self._activity, problem, lease, self.preparation.cause)

    @property
    def _activity(self) -> Activity:
        if self.preparation.unable:
            return "unable"
        if self.rest.resting:  # also while a training stops: the coordinator asks others at once
            return "resting"
        if self.turn.training:
            return "training"
        if not self.preparation.prepared:
            return "starting"
        if self.failure:
            return "failed"
        return "fetching" if self.download.busy else "ready"

    def handle(self, event: Event, now: float) -> list[Command]:
        """The commands that this event leads to.

        Raises:
            WireError: if it is an invalid chunk; nothing has changed then.
        """
        before = self._activity
        commands = [*self._take(event, now), *self._next(now)]
        if self._activity != before or isinstance(event, ANNOUNCED):
            commands.append(Announce())
        return sorted(commands, key=lambda command: PLACES.get(type(command), 0))

    def _take(self, event: Event, now: float) -> list[Command]:
        match event:
            case LinkUp(resumed):
                report = self._report(now)
                return report if resumed else [*report, *self.download.follow_again(now)]
            case ClaimCame(instance):
                return [Announce(instance)]
            case StateCame(state):
                return self._state_came(state, now)
            case TaskCame(task):
                return self._task_came(task, now)
            case ModelChunkCame():
                return self.download.take(event, now)
            case ReplyCame(reply):
                return self._reply_came(reply, now)
            case GateClosed(reason):
                return self._rest(reason)
            case GateOpened():
                return self.rest.end()
            case CauseGone():
                return self.preparation.retry_now(now)
            case Tick():
                return self.download.tick(now) or self._report_overdue(now)
            case DownloadFailed() | TurnFailed() | Unsent() | Unsettled():
                return self._failed(event)
            case _:
                return self._done(event, now)

    def _done(
        self,
        event: Prepared | Unable | Fetched | Spoiled | Trained | TurnLost | Abandoned | Settled,
        now: float,
    ) -> list[Command]:
        """The result of a command."""
        match event:
            case Prepared():
                self.preparation.succeeded(event)
                return self._report(now)
            case Unable():
                return self.preparation.failed(event, now)
            case Fetched(version):
                self.download.fetched(version)
            case Spoiled():
                self.turn.stop()
                return self.download.spoiled(event, self.assignment.state, now)
            case Trained(pending):
                self.turn.trained(pending)
                return self._leave_other_run() or self._report_first(now)
            case TurnLost():
                self.turn.lost()
            case Abandoned():
                self.turn.stop()
                return [Note(f"training abandoned: {self.turn.abandoned_for}")]
            case Settled(decision):
                self.turn.settled(decision)
                self.failure = ""
        return []

    def _failed(self, event: DownloadFailed | TurnFailed | Unsent | Unsettled) -> list[Command]:
        """Wait to be asked again: the coordinator sees in the status that this device failed."""
        self.failure = event.reason
        match event:
            case Unsettled():
                self.turn.unsettled()
                return [Note(f"the answer cannot be saved: {event.reason}")]
            case TurnFailed():
                self.turn.stop()
        self.assignment.drop_task()
        stop = self.download.stop() if isinstance(event, DownloadFailed) else []
        return [*stop, Note(f"the turn failed: {event.reason}")]

    def _rest(self, reason: str) -> list[Command]:
        """Give the turn up. The task is void: the coordinator asks again when this device wakes."""
        self.failure = ""
        self.assignment.drop_all()
        return [*self.rest.begin(reason), *self.turn.give_up("the device rests")]

    # Messages of the coordinator

    def _state_came(self, state: State, now: float) -> list[Command]:
        self.assignment.follow(state)
        abandon = self.turn.abandon_other(state)
        return [*abandon, *(self._leave_other_run() or self._report(now))]

    def _task_came(self, task: TaskMessage, now: float) -> list[Command]:
        if self.rest.resting:  # the status says so at once: the coordinator need not wait
            return [*self._resend(task, now), Announce()]
        if not self.assignment.take(task):
            return []
        self.failure = ""
        return self._resend(task, now)

    def _resend(self, task: TaskMessage, now: float) -> list[Command]:
        """Send the update that the task asks for, if it is on disk."""
        asked_again = self.turn.last_accepted == Pending(task.run, task.version)
        return self._send(now) if asked_again or self.turn.pending is not None else []

    def _reply_came(self, reply: Reply, now: float) -> list[Command]:
        if not self.turn.expects(reply):
            return []
        if reply.kind == "resend":
            return self._send(now, reply.chunks) if reply.chunks else []
        self.assignment.drop_task(reply.version)
        return self.turn.answered(reply)

    # The update

    def _leave_other_run(self) -> list[Command]:
        state = self.assignment.state
        return [] if state is None else self.turn.leave_other_run(state.run)

    def _report(self, now: float) -> list[Command]:
        """Report the pending update: the answer is a decision, or the chunks that are missing."""
        return self._send(now) if self.turn.pending is not None else []

    def _report_first(self, now: float) -> list[Command]:
        return self.turn.send_first(now) if self._may_send else []

    def _send(self, now: float, chunks: tuple[int, ...] = ()) -> list[Command]:
        return self.turn.send(chunks, now) if self._may_send else []

    def _report_overdue(self, now: float) -> list[Command]:
        state = self.assignment.state
        over = state is None or state.phase == "done"  # the coordinator may have ended
        if over or not self.turn.overdue(now) or not self._may_send:
            return []
        return self.turn.send_again(now)

    @property
    def _may_send(self) -> bool:
        """True if the method is loaded that lists the scalars which may leave the device."""
        return self.preparation.serves(self.assignment.state)

    # The next step

    def _next(self, now: float) -> list[Command]:
        """The next step from all that is known; nothing while the worker is busy.

        While the device rests it leaves outdated downloads, and begins nothing.
        """
        state = self.assignment.state
        if state is None or self.preparation.preparing or self.turn.training:
            return []
        if self.preparation.refuses(state, now):
            return []
        stop = self.download.leave_outdated(state)
        if self.rest.resting:
            return stop
        if not self.preparation.serves(state):
            self.failure = ""
            return [*stop, *self.preparation.begin(state)]
        return [*stop, *self._step(state, now)]

    def _step(self, state: State, now: float) -> list[Command]:
        if self.download.complete:
            return self.download.check()
        if self.turn.undecided or self.download.busy:
            return []
        if self.assignment.task is not None:
            return self._begin(state, now)
        return [] if self.download.held or self.failure else self._download(state, now)

    def _begin(self, state: State, now: float) -> list[Command]:
        """Take the turn of this state: train if its version is held, download it if not."""
        if self.turn.is_over(Pending(state.run, state.version)):
            return []
        if self.download.held == state.version:
            return self.turn.train(state)
        return self._download(state, now)

    def _download(self, state: State, now: float) -> list[Command]:
        if self.download.refused == state.manifest:
            return []
        try:
            return self.download.begin(state, self.preparation.most_bytes, now)
        except WireError as error:
            self.assignment.drop_task()
            return [Note(f"model {state.version} is not downloaded: {error}")]
