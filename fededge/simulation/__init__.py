"""Simulation: a whole federation on one machine, with a loop in place of broker and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fededge._internal.lazy_torch import lazy_names

__all__ = ["Executor", "ProcessExecutor", "SerialExecutor", "Setup", "SimulatedRound", "Simulation"]

if TYPE_CHECKING:
    from fededge.simulation.executors import Executor, SerialExecutor, Setup
    from fededge.simulation.loop import SimulatedRound, Simulation
    from fededge.simulation.workers import ProcessExecutor
else:
    # Lazy imports: these modules need torch. Flags need the settings of an experiment alone.
    __getattr__ = lazy_names(
        __name__,
        {
            "executors": "Executor SerialExecutor Setup",
            "loop": "SimulatedRound Simulation",
            "workers": "ProcessExecutor",
        },
    )
