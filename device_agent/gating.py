"""Asks the gate of the box, and tells the machine when its verdict changes."""

from __future__ import annotations

import msgspec

from fededge.config import AgentConfig
from fededge.hardware.gate import Conditions, Gate, Verdict
from fededge_agent.machine.events import GateClosed, GateOpened

__all__ = ["Gating", "gate_of"]


def gate_of(config: AgentConfig) -> Gate:
    """The gate that `[hardware.when]` describes."""
    return Gate(Conditions(**msgspec.structs.asdict(config.hardware.when)))


class Gating:
    """The gate, and the verdict that the machine knows. The constructor only stores."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._reported = Verdict(True)

    def check(self) -> None:
        """Refuse conditions that this box has no sensor for; ConfigError names the key."""
        self.gate.check()

    def begin(self) -> str:
        """The reason why the device may not train at its start; empty if it may."""
        self._reported = self.gate.verdict()
        return self._reported.reason

    def look(self, training: bool) -> GateClosed | GateOpened | None:
        """The event for the machine, if the verdict is another one than before."""
        before, self._reported = self._reported, self.gate.verdict(training)
        if self._reported == before:
            return None
        return GateOpened() if self._reported.allowed else GateClosed(self._reported.reason)
