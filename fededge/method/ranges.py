"""Ranges of the numbers that a device reports: a number outside of its range is refused.

A range follows from what the coordinator itself knows: the training it asks for, and numbers of
the report that were checked before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fededge.errors import MethodError
from fededge.method.turn import Hyper

__all__ = ["EXAMPLES", "UNDECLARED", "Range", "common"]


@dataclass(frozen=True)
class Range:
    """The finite numbers from `low` to `high`, both included; of a count, `whole` ones only."""

    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise MethodError(f"a range from {self.low} to {self.high} has no number in it")

    def __contains__(self, value: float) -> bool:
        inside = math.isfinite(value) and self.low <= value <= self.high
        return inside and (not self.whole or value == int(value))

    def __str__(self) -> str:
        number = "a whole number " if self.whole else ""
        return f"{number}between {self.low} and {self.high}"


EXAMPLES = Range(0, 2**53, whole=True)
"""Larger counts are not exact in float64."""

LOSS = Range(-3.4028234663852886e38, 3.4028234663852886e38)
"""Every finite float32: a loss decides nothing, and that of a model that diverges may be large."""

UNDECLARED = Range(-1e9, 1e9)
"""The range of a method's scalar that its `ranges` leaves out."""


def common(hyper: Hyper, passes: int, examples: int) -> dict[str, Range]:
    """The ranges of the scalars that every method reports.

    Args:
        hyper: the training that the coordinator asks for.
        passes: the most passes over the data that lead to the model that is sent.
        examples: as many as the device reports.
    """
    batches = -(-examples // hyper.batch_size)
    return {
        "examples": EXAMPLES,
        "steps": Range(0, min(passes * batches, EXAMPLES.high), whole=True),
        "loss": LOSS,
        "personal_accuracy": Range(0, 1),
    }
