"""The preparation: network, data and method for the job that the federation describes."""

from __future__ import annotations

import math
from enum import Enum

from fededge.wire.messages import State
from fededge_agent.machine.commands import Command, Note, Prepare
from fededge_agent.machine.events import Cause, Prepared, Unable
from fededge_agent.machine.terms import same_job
from fededge_agent.machine.transitions import Rows, StateMachine

__all__ = ["PREPARATION", "Preparation", "PreparationState"]


class PreparationState(Enum):
    UNPREPARED = "unprepared"
    PREPARING = "preparing"
    PREPARED = "prepared"
    UNABLE = "unable"


NEW_JOB = "a state with a new job"
RETRY = "the cause may have passed"

FIRST_RETRY, LONGEST_RETRY = 60.0, 3600.0
"""Seconds until a preparation is tried again; doubled after each failure, unless the disk is full:
that may pass at any time, and is found out quickly."""

PREPARATION: Rows[PreparationState] = (
    (PreparationState.UNPREPARED, NEW_JOB, PreparationState.PREPARING),
    (PreparationState.PREPARING, "Prepared", PreparationState.PREPARED),
    (PreparationState.PREPARING, "Unable", PreparationState.UNABLE),
    (PreparationState.PREPARED, NEW_JOB, PreparationState.PREPARING),
    (PreparationState.UNABLE, NEW_JOB, PreparationState.PREPARING),
    (PreparationState.UNABLE, RETRY, PreparationState.PREPARING),
)


class Preparation(StateMachine[PreparationState]):
    """Prepares one job at a time. `reason` and `cause` say why the device is unable to run it.

    `most_bytes` is the largest size that a model of the prepared job can have.
    """

    def __init__(self) -> None:
        super().__init__(PreparationState.UNPREPARED, PREPARATION)
        self.most_bytes = 0
        self.reason = ""
        self.cause: Cause | None = None
        self._job: State | None = None
        self._retry_at = math.inf
        self._delay = FIRST_RETRY

    @property
    def preparing(self) -> bool:
        return self.state is PreparationState.PREPARING

    @property
    def unable(self) -> bool:
        return self.state is PreparationState.UNABLE

    @property
    def prepared(self) -> bool:
        return self.state is PreparationState.PREPARED

    def serves(self, state: State | None) -> bool:
        """True if this state can be trained for."""
        return self.prepared and self._is_for(state)

    def refuses(self, state: State, now: float) -> bool:
        """True if the device is unable to train for this state, and the retry is not due."""
        return self.unable and self._is_for(state) and now < self._retry_at

    def _is_for(self, state: State | None) -> bool:
        return state is not None and self._job is not None and same_job(self._job, state)

    def begin(self, state: State) -> list[Command]:
        again = self.unable and self._is_for(state)
        self._move(RETRY if again else NEW_JOB, PreparationState.PREPARING)
        self._job, self.reason, self.cause = state, "", None
        self._delay = min(2 * self._delay, LONGEST_RETRY) if again else FIRST_RETRY
        return [Prepare(state)]

    def succeeded(self, event: Prepared) -> None:
        self._move("Prepared", PreparationState.PREPARED)
        self._job, self.most_bytes = event.state, event.most_bytes

    def failed(self, event: Unable, now: float) -> list[Command]:
        self._move("Unable", PreparationState.UNABLE)
        delay = FIRST_RETRY if event.cause is Cause.DISK else self._delay
        self._retry_at = math.inf if event.cause is Cause.JOB else now + delay
        self._job, self.reason, self.cause = event.state, event.reason, event.cause
        return [Note(f"cannot take part: {event.reason}")]

    def retry_now(self, now: float) -> list[Command]:
        """The cause of the failure seems gone: the next step tries again."""
        if self.unable:
            self._retry_at, self._delay = now, FIRST_RETRY / 2  # the retry doubles it
        return []
