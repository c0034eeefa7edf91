"""A device's standing: what an operator has ordered for it, beside what the device says itself."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ACTIVE", "STANDINGS", "Ordered", "Standing"]


class Standing(enum.Enum):
    """`ACTIVE`: no order is in force, and the rounds ask the device like any other."""

    ACTIVE = "active"
    DRAINED = "drained"
    RESTED = "rested"
    QUARANTINED = "quarantined"

    __hash__ = object.__hash__  # as that of `Group`


DRAIN, REST = "`drain`: it ends its turn, and is not asked again", "`rest`: the same, for a while"
QUARANTINE = "`quarantine`: its updates are refused, and it is not asked"
RELEASE = "`release`"

STANDINGS: Mapping[Standing, Mapping[Standing, str]] = {
    Standing.ACTIVE: {
        Standing.DRAINED: DRAIN,
        Standing.RESTED: REST,
        Standing.QUARANTINED: QUARANTINE,
    },
    Standing.DRAINED: {
        Standing.ACTIVE: RELEASE,
        Standing.RESTED: REST,
        Standing.QUARANTINED: QUARANTINE,
    },
    Standing.RESTED: {
        Standing.ACTIVE: f"{RELEASE}, or its time is over",
        Standing.DRAINED: DRAIN,
        Standing.QUARANTINED: QUARANTINE,
    },
    Standing.QUARANTINED: {Standing.ACTIVE: RELEASE},
}
"""The orders that lead from one standing to the next. Others are refused."""


class Ordered(NamedTuple):
    """A standing as the journal has it. `until`: the time of day at which it ends, 0 for never."""

    standing: Standing
    until: float = 0.0
    reason: str = ""

    def at(self, wall: float) -> Standing:
        """The standing at a time of day."""
        return Standing.ACTIVE if 0.0 < self.until <= wall else self.standing


ACTIVE = Ordered(Standing.ACTIVE)
