"""The event and the command of the schedule: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = ["TimeOfDay", "Woke"]


@dataclass(frozen=True)
class TimeOfDay:
    """An event: the local time, where rounds have their hours."""

    moment: datetime


@dataclass(frozen=True)
class Woke:
    """Write down that a rest has ended: what was flat before this round counts no more."""

    round: int
