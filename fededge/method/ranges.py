"""Ranges of the scalars that a device reports: a value outside its range is refused.

The coordinator derives a range from the training that it asks for, and from scalars of the report
that it has checked already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fededge.errors import MethodError
from fededge.method.turn import Hyper

__all__ = ["EXAMPLES", "UNDECLARED", "Range", "common_ranges"]


@dataclass(frozen=True)
class Range:
    """The finite numbers from `low` to `high`, both included; only whole ones if `whole`."""

    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise MethodError(f"a Range from {self.low} to {self.high} is empty")

    def __contains__(self, value: float) -> bool:
        inside = math.isfinite(value) and self.low <= value <= self.high
        return inside and (not self.whole or value == int(value))

    def __str__(self) -> str:
        number = "a whole number " if self.whole else ""
        return f"{number}between {self.low} and {self.high}"


EXAMPLES = Range(0, 2**53, whole=True)
"""Larger counts are not exact in float64."""

LOSS = Range(-3.4028234663852886e38, 3.4028234663852886e38)
"""Every finite float32: no decision depends on the loss, and a diverging model's may be large."""

UNDECLARED = Range(-1e9, 1e9)
"""The range of a method's scalar that its `ranges` leaves out."""


def common_ranges(hyper: Hyper, passes: int, examples: int) -> dict[str, Range]:
    """Return the ranges of the scalars that every method reports.

    Args:
        hyper: the training that the coordinator asks for.
        passes: the most epochs that lead to the uploaded model.
        examples: the number of examples that the device reports.
    """
    batches = -(-examples // hyper.batch_size)
    return {
        "examples": EXAMPLES,
        "steps": Range(0, min(passes * batches, EXAMPLES.high), whole=True),
        "loss": LOSS,
        "personal_accuracy": Range(0, 1),
    }
