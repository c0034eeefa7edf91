"""The schedule of exports: the newest personal model, when the device is idle or it is time."""

from __future__ import annotations

import math
from enum import Enum
from typing import Generic, TypeVar

from fededge_agent.machine.transitions import Rows, StateMachine

__all__ = ["EXPORT", "QUIET", "ExportSchedule", "ExportState"]

QUIET = 1.0
"""Seconds after a turn: no task has come since, so that the device counts as idle."""


class ExportState(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    EXPORTING = "exporting"
    BEHIND = "exporting, and a newer one waits"


OFFERED, DUE, DONE = "a turn left a personal model", "it is due", "the export ended"

EXPORT: Rows[ExportState] = (
    (ExportState.IDLE, OFFERED, ExportState.WAITING),
    (ExportState.WAITING, OFFERED, ExportState.WAITING),
    (ExportState.WAITING, DUE, ExportState.EXPORTING),
    (ExportState.EXPORTING, OFFERED, ExportState.BEHIND),
    (ExportState.EXPORTING, DONE, ExportState.IDLE),
    (ExportState.BEHIND, OFFERED, ExportState.BEHIND),
    (ExportState.BEHIND, DONE, ExportState.WAITING),
)

AFTER_OFFER = {source: target for source, cause, target in EXPORT if cause == OFFERED}
AFTER_DONE = {source: target for source, cause, target in EXPORT if cause == DONE}

M = TypeVar("M")


class ExportSchedule(StateMachine[ExportState], Generic[M]):
    """One model waits at most: a newer one takes its place, but not its waiting time.

    Args:
        interval: seconds after which a model that waits is due, however busy the device is.
    """

    def __init__(self, interval: float) -> None:
        super().__init__(ExportState.IDLE, EXPORT)
        self.interval = interval
        self._waiting: M | None = None
        self._since = math.inf
        self._idle_since: float | None = -math.inf

    def turn_began(self) -> None:
        self._idle_since = None

    def turn_ended(self, now: float) -> None:
        self._idle_since = now

    def left(self, now: float) -> bool:
        """A turn left a model, which may be offered later; True if it is due now, at the latest."""
        self._since = min(self._since, now)
        return now >= self._since + self.interval

    def offer(self, model: M, now: float) -> M | None:
        """Let a model wait; returns the older one whose place it takes."""
        self._move(OFFERED, AFTER_OFFER[self.state])
        dropped, self._waiting = self._waiting, model
        self._since = min(self._since, now)
        return dropped

    @property
    def due_at(self) -> float:
        """The time at which the model that waits is due; inf if none may begin."""
        if self.state is not ExportState.WAITING:
            return math.inf
        quiet = math.inf if self._idle_since is None else self._idle_since + QUIET
        return min(quiet, self._since + self.interval)

    def begin(self) -> M:
        """The model to export now."""
        assert self._waiting is not None
        self._move(DUE, ExportState.EXPORTING)
        model, self._waiting, self._since = self._waiting, None, math.inf
        return model

    def done(self) -> None:
        self._move(DONE, AFTER_DONE[self.state])
