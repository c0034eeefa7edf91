"""A paired test on the same examples: is one model worse than another by more than chance?

Only examples on which exactly one of the two is right tell them apart. If the models were equally
good, each such example would fall to either side like a coin: the sign test, which is McNemar's
test with exact probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["LEVEL", "Right", "accuracy", "chance_of_loss"]

LEVEL = 0.05
"""A newer model is worse if a loss like its own has a smaller chance."""

Right = Sequence[bool]
"""For each held-out example in order: the model is right."""


def accuracy(right: Right) -> float:
    return sum(right) / len(right)


def chance_of_loss(new: Right, old: Right) -> float:
    """The chance that an equally good model loses at least as clearly to the old one as this.

    Raises:
        ValueError: if the two were not measured on the same number of examples.
    """
    pairs = [*zip(new, old, strict=True)]
    lost = sum(before and not now for now, before in pairs)
    won = sum(now and not before for now, before in pairs)
    told = lost + won
    return float(sum(math.comb(told, k) for k in range(lost, told + 1)) / 2**told)
