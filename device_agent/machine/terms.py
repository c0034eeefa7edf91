"""Comparisons of states and tasks: same run, same job, outdated."""

from __future__ import annotations

from fededge.wire.messages import State, TaskMessage, round_of

__all__ = ["asks_for", "outdated", "same_job", "terms"]


def terms(state: State) -> tuple[object, ...]:
    """The constants of a run: its identity and everything that decides the result of a turn."""
    return state.run, state.seed, *_job(state)


def same_job(a: State, b: State) -> bool:
    """True if what was built for one state serves the other."""
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


def asks_for(task: TaskMessage | None, state: State) -> bool:
    """True if the task is for the version of this state."""
    return task is not None and (task.run, task.version) == (state.run, state.version)


def outdated(task: TaskMessage, state: State) -> bool:
    """True if the task's round is over: a duplicate, or a message that was delayed."""
    return task.run == state.run and round_of(task.version) < round_of(state.version)
