"""The assignment of this device: the federation's newest state, and a task for that state."""

from __future__ import annotations

from dataclasses import dataclass

from fededge.wire.messages import State, TaskMessage
from fededge_agent.machine.terms import asks_for, outdated

__all__ = ["Assignment"]


@dataclass
class Assignment:
    """The newest state and the task for it; `early` is a task whose state has not come yet."""

    state: State | None = None
    task: TaskMessage | None = None
    early: TaskMessage | None = None

    def follow(self, state: State) -> None:
        """Go by this state; a task of another state is void."""
        self.state = state
        if asks_for(self.early, state):
            self.task, self.early = self.early, None
        elif not asks_for(self.task, state):
            self.task = None

    def take(self, task: TaskMessage) -> bool:
        """Take a task for the current state; a task that is ahead of its state waits for it."""
        if self.state is not None and asks_for(task, self.state):
            self.task = task
            return True
        if self.state is None or not outdated(task, self.state):
            self.early = task
        return False

    def drop_all(self) -> None:
        """Forget every task, also one whose state has not come yet."""
        self.task = self.early = None

    def drop_task(self, version: str = "") -> None:
        """Forget the task, or only a task for this version."""
        if self.task is not None and version in ("", self.task.version):
            self.task = None
