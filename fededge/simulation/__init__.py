"""Simulation: a whole federation on one machine, with a loop in place of broker and processes."""

from __future__ import annotations

from fededge.simulation.executors import Executor, ProcessExecutor, SerialExecutor, Setup
from fededge.simulation.loop import SimulatedRound, Simulation

__all__ = ["Executor", "ProcessExecutor", "SerialExecutor", "Setup", "SimulatedRound", "Simulation"]
