"""The gate and the machine: each change of the verdict is told once."""

from __future__ import annotations

from fededge.config import AgentConfig, HardwareConfig
from fededge.config.gate_sections import WhenConfig
from fededge.hardware.gate import Conditions, Gate, Verdict
from fededge_agent.gating import Gating, gate_of
from fededge_agent.machine.events import GateClosed, GateOpened


class SetGate(Gate):
    """A gate whose verdict the test sets."""

    def __init__(self) -> None:
        super().__init__(Conditions())
        self.reason = ""
        self.trained: list[bool] = []

    def verdict(self, training: bool = False) -> Verdict:
        self.trained.append(training)
        return Verdict(not self.reason, self.reason)


def test_a_change_of_the_verdict_is_told_once() -> None:
    gate = SetGate()
    gating = Gating(gate)
    assert gating.begin() == ""
    assert gating.look(training=False) is None
    gate.reason = "hot"
    assert gating.look(training=True) == GateClosed("hot")
    assert gating.look(training=False) is None
    gate.reason = "hot; on battery"
    assert gating.look(training=False) == GateClosed("hot; on battery")
    gate.reason = ""
    assert gating.look(training=False) == GateOpened()
    assert gate.trained == [False, False, True, False, False, False]


def test_the_reason_at_the_start_is_not_told_again() -> None:
    gate = SetGate()
    gate.reason = "hot"
    gating = Gating(gate)
    assert gating.begin() == "hot"
    assert gating.look(training=False) is None


def test_the_gate_has_the_conditions_of_the_configuration() -> None:
    when = WhenConfig(hours=("22:00-06:00",), below_celsius=75.0)
    hardware = HardwareConfig(when=when)
    config = AgentConfig(federation="lab", state="here", device="box", hardware=hardware)
    assert gate_of(config).conditions == Conditions(hours=("22:00-06:00",), below_celsius=75.0)
