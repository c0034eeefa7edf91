"""A state is a word: machines that move along the rows of a table, and in no other way."""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

__all__ = ["Rows", "StateMachine", "markdown"]

S = TypeVar("S", bound=Enum)

Rows = tuple[tuple[S, str, S], ...]
"""From which state, for which cause, to which state."""


class StateMachine(Generic[S]):
    """One state and the transitions out of it."""

    def __init__(self, initial: S, rows: Rows[S]) -> None:
        self._state = initial
        self._rows = rows

    @property
    def state(self) -> S:
        return self._state

    def _move(self, cause: str, target: S) -> None:
        row = (self._state, cause, target)
        assert row in self._rows, f"no transition from {self._state.name} to {target.name}: {cause}"
        self._state = target


def markdown(title: str, rows: Rows[S]) -> str:
    """The transitions as a Markdown table."""
    lines = [f"| {source.value} | {cause} | {target.value} |" for source, cause, target in rows]
    return "\n".join([f"| {title} | cause | next state |", "|---|---|---|", *lines])
