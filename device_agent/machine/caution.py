"""Which states an agent without a trusted key goes by.

Nothing proves who said them. But the terms of a run do not change, and a coordinator that runs
puts its own state back at once where somebody else's has taken its place. So a state with other
terms is believed when it has stood for a while: no message alone makes a device give its run up.
"""

from __future__ import annotations

from fededge.wire.messages import State
from fededge_agent.machine.terms import terms

__all__ = ["Caution"]

STANDS = 10.0
"""Seconds for which other terms must stand; a coordinator contradicts within one."""


class Caution:
    """`run` is that of the private state at hand; empty if there is none."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.believed: State | None = None
        self.doubted: State | None = None
        self.since = 0.0

    def weigh(self, state: State, now: float) -> bool:
        """Whether to go by this state now; `tick` returns it later if it stands."""
        if self._agrees(state):
            self._believe(state)
            return True
        if self.doubted is None or terms(self.doubted) != terms(state):
            self.since = now
        self.doubted = state
        return False

    def tick(self, now: float) -> State | None:
        """A state that has stood for long enough."""
        stood = self.doubted
        if stood is None or now - self.since < STANDS:
            return None
        self._believe(stood)
        return stood

    def _agrees(self, state: State) -> bool:
        if self.believed is None:
            return self.run in ("", state.run)
        return terms(self.believed) == terms(state)

    def _believe(self, state: State) -> None:
        self.believed, self.doubted = state, None
