"""What is asked of the numbers of a vector, and how a long one is gone through."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["BLOCK", "blocks", "finite"]

BLOCK = 1 << 18
"""Numbers of a block: 1 MB as float32, which the processor's cache holds."""


def blocks(first: int, last: int, size: int = BLOCK) -> Iterator[slice]:
    """From `first` to `last` in steps: what is made block by block is never there as a whole."""
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def finite(vector: Tensor) -> bool:
    """Whether all numbers are finite: by the least and the largest, which a NaN would be.

    `torch.isfinite` makes a second vector on the way, and of a large model that is much.
    """
    if not vector.numel():
        return True
    return all(math.isfinite(end) for end in torch.aminmax(vector.detach()))
