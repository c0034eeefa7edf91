"""A whole federation in one process: what is between the two halves of a method is a loop here."""

from __future__ import annotations

from fededge.simulation.crew import Alone, Crew, Setup, Workers
from fededge.simulation.loop import SimulatedRound, Simulation

__all__ = ["Alone", "Crew", "Setup", "SimulatedRound", "Simulation", "Workers"]
