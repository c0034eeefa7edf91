"""Rest: the box's own conditions forbid a turn now."""

from __future__ import annotations

from enum import Enum

from fededge_agent.machine.commands import Command, Note
from fededge_agent.machine.transitions import Rows, StateMachine

__all__ = ["REST", "Rest", "RestState"]


class RestState(Enum):
    AWAKE = "awake"
    RESTING = "resting"


REST: Rows[RestState] = (
    (RestState.AWAKE, "GateClosed", RestState.RESTING),
    (RestState.RESTING, "GateOpened", RestState.AWAKE),
)


class Rest(StateMachine[RestState]):
    """Awake or resting. `reason` says why the device rests; empty while it is awake."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(RestState.RESTING if reason else RestState.AWAKE, REST)
        self.reason = reason

    @property
    def resting(self) -> bool:
        return self.state is RestState.RESTING

    def begin(self, reason: str) -> list[Command]:
        """Rest, or go on resting for another reason."""
        self.reason = reason
        if not self.resting:
            self._move("GateClosed", RestState.RESTING)
        return [Note(f"resting: {reason}")]

    def end(self) -> list[Command]:
        if not self.resting:
            return []
        self._move("GateOpened", RestState.AWAKE)
        self.reason = ""
        return [Note("may train again")]
