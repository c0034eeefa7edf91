"""The states that an agent without a trusted key believes.

Their sender cannot be verified. But the terms of a run do not change, and a running coordinator
replaces a forged state at once. So a state with other terms is believed only after it has stood for
a while: no single message makes a device give up its run.
"""

from __future__ import annotations

from fededge.wire.messages import State
from fededge_agent.machine.terms import terms

__all__ = ["Caution"]

STANDS = 10.0
"""Seconds for which other terms must stand; a coordinator replaces them within one."""


class Caution:
    """Delays the belief in other terms. `run` is the run of our private state, empty without."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.believed: State | None = None
        self.doubted: State | None = None
        self.since = 0.0

    def weigh(self, state: State, now: float) -> bool:
        """True if the state is believed now; otherwise `tick` returns it later, if it stands."""
        if self._agrees(state):
            self._believe(state)
            return True
        if self.doubted is None or terms(self.doubted) != terms(state):
            self.since = now
        self.doubted = state
        return False

    def tick(self, now: float) -> State | None:
        """A state that has stood long enough, or None."""
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
