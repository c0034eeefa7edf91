"""A whole federation in one process: what is between the two halves of a method is a loop here."""

from __future__ import annotations

from fededge.simulation.loop import SimulatedRound, Simulation
from fededge.simulation.workers import Alone, Crew, Setup, Workers

__all__ = ["Alone", "Crew", "Setup", "SimulatedRound", "Simulation", "Workers"]
