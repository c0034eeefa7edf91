"""A turn: training, the report, the coordinator's answer, and keeping that answer."""

from __future__ import annotations

import math
from enum import Enum

from fededge.wire.messages import Reply, State
from fededge_agent.machine.commands import Abandon, Command, Note, SendUpdate, Settle, Train
from fededge_agent.machine.events import Pending
from fededge_agent.machine.terms import terms
from fededge_agent.machine.transitions import Rows, StateMachine

__all__ = ["TURN", "UNANSWERED", "DeviceTurn", "TurnState"]

UNANSWERED = 10.0
"""Seconds without an answer after which the report is sent again; the wait doubles each time."""

LONGEST_WAIT = 320.0
"""Longest wait between two reports: few pile up while the link is down for a day."""


class TurnState(Enum):
    IDLE = "idle"
    TRAINING = "training"
    AWAITING_ANSWER = "awaiting answer"
    LOST = "update lost"
    SETTLING = "settling"


TASK = "a task for the held version"
STOPPED = "TurnFailed, Abandoned or Spoiled"
ANSWER = "the answer came, or another run began"

TURN: Rows[TurnState] = (
    (TurnState.IDLE, TASK, TurnState.TRAINING),
    (TurnState.TRAINING, "Trained", TurnState.AWAITING_ANSWER),
    (TurnState.TRAINING, STOPPED, TurnState.IDLE),
    (TurnState.TRAINING, STOPPED, TurnState.LOST),
    (TurnState.AWAITING_ANSWER, "TurnLost", TurnState.LOST),
    (TurnState.AWAITING_ANSWER, ANSWER, TurnState.SETTLING),
    (TurnState.LOST, TASK, TurnState.TRAINING),
    (TurnState.LOST, ANSWER, TurnState.SETTLING),
    (TurnState.SETTLING, "Settled", TurnState.IDLE),
    (TurnState.SETTLING, "Unsettled", TurnState.AWAITING_ANSWER),
    (TurnState.SETTLING, "Unsettled", TurnState.LOST),
)


class DeviceTurn(StateMachine[TurnState]):
    """One turn at a time: the next one begins from the private state that this one leaves.

    `pending` is the update that awaits the coordinator's answer; `damaged`: its file is unreadable.
    `last_accepted` was accepted and is kept: it is sent again rather than trained again.
    `missed` came too late: a delayed task for it is not taken again.
    `abandoned_for` says why the last training was given up.
    """

    def __init__(
        self,
        pending: Pending | None = None,
        last_accepted: Pending | None = None,
        missed: Pending | None = None,
    ) -> None:
        super().__init__(TurnState.AWAITING_ANSWER if pending else TurnState.IDLE, TURN)
        self.pending = pending
        self.last_accepted = last_accepted
        self.missed = missed
        self.damaged = False
        self.abandoned_for = ""
        self._trains: State | None = None
        self._sent = -math.inf
        self._wait = UNANSWERED

    @property
    def training(self) -> bool:
        return self.state is TurnState.TRAINING

    @property
    def undecided(self) -> bool:
        """True while no other turn may begin."""
        return self.state in (TurnState.AWAITING_ANSWER, TurnState.SETTLING)

    def is_over(self, turn: Pending) -> bool:
        """True if this turn is not to be taken again."""
        return turn in (self.last_accepted, self.missed)

    # Training

    def train(self, state: State) -> list[Command]:
        self._move(TASK, TurnState.TRAINING)
        self._trains = state
        return [Train(state)]

    def abandon_other(self, state: State) -> list[Command]:
        """Abandon a training whose terms are not those of this state."""
        other = self._trains is not None and terms(self._trains) != terms(state)
        return self.give_up("the federation trains something else now") if other else []

    def give_up(self, why: str) -> list[Command]:
        """Abandon the training that is under way, if there is one."""
        self.abandoned_for = why
        return [Abandon()] if self.training else []

    def trained(self, pending: Pending) -> None:
        self._move("Trained", TurnState.AWAITING_ANSWER)
        self.last_accepted, self.pending, self.damaged = None, pending, False

    def stop(self) -> None:
        """The training ended without an update."""
        if self.training:
            self._move(STOPPED, TurnState.IDLE if self.pending is None else TurnState.LOST)

    # The report

    def send(self, chunks: tuple[int, ...], now: float) -> list[Command]:
        self._sent, self._wait = now, UNANSWERED
        return [SendUpdate(chunks)]

    def send_first(self, now: float) -> list[Command]:
        """Report a new update. Only this report may carry it: a repetition may not be needed."""
        self._sent, self._wait = now, UNANSWERED
        return [SendUpdate(attached=True)]

    def overdue(self, now: float) -> bool:
        """True if the answer to the report has not come in time."""
        return self.pending is not None and now - self._sent >= self._wait

    def send_again(self, now: float) -> list[Command]:
        """Send the report once more, and wait longer for the answer."""
        self._sent, self._wait = now, min(2 * self._wait, LONGEST_WAIT)
        return [SendUpdate()]

    def lost(self) -> None:
        """The file of the update is damaged: its turn is to be taken again."""
        self.last_accepted = None
        if self.state is TurnState.AWAITING_ANSWER:
            self._move("TurnLost", TurnState.LOST)
            self.damaged = True

    # The answer

    def expects(self, reply: Reply) -> bool:
        """True if the reply is about our update, and may be acted on now.

        While a lost turn is taken again, its private state and its file must not change.
        """
        if self.state is TurnState.SETTLING or (self.training and self.pending is not None):
            return False
        return (self.pending or self.last_accepted) == Pending(reply.run, reply.version)

    def answered(self, reply: Reply) -> list[Command]:
        """Keep the coordinator's decision."""
        if self.pending is None:
            return []
        if reply.kind == "accepted":
            self._move(ANSWER, TurnState.SETTLING)
            return [Settle(accepted=True)]
        return self._drop(f"update {reply.kind}: {reply.reason}", reply.kind == "late")

    def leave_other_run(self, run: str) -> list[Command]:
        """Updates of another run are of no use to this one."""
        if self.last_accepted is not None and self.last_accepted.run != run:
            self.last_accepted = None
        if self.pending is None or self.pending.run == run or self.state is TurnState.SETTLING:
            return []
        return self._drop("the update belongs to another run of the federation: dropped")

    def _drop(self, why: str, late: bool = False) -> list[Command]:
        if not self.training:
            self._move(ANSWER, TurnState.SETTLING)
        return [Note(why), Settle(accepted=False, late=late)]

    def settled(self, decision: Settle) -> None:
        """The decision is on disk: the next turn may begin."""
        update, self.pending = self.pending, None
        if decision.accepted:
            self.last_accepted = None if self.damaged else update
        elif decision.late:
            self.missed = update
        self.damaged = False
        if not self.training:
            self._move("Settled", TurnState.IDLE)

    def unsettled(self) -> None:
        """The decision could not be kept: the coordinator is asked for it again."""
        if not self.training:
            target = TurnState.LOST if self.damaged else TurnState.AWAITING_ANSWER
            self._move("Unsettled", target)
