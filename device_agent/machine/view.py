"""A read-only view of the agent's machine, for its status."""

from __future__ import annotations

from dataclasses import dataclass

from fededge_agent.machine.events import Activity, Cause

__all__ = ["AgentView"]


@dataclass(frozen=True)
class AgentView:
    """A read-only view of the machine; `problem` is empty if there is none.

    `lease` is the number of seconds for which a status is valid; None before the first state.
    `cause` is that of a failed preparation.
    """

    activity: Activity
    problem: str
    lease: float | None
    cause: Cause | None = None
