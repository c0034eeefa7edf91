"""What is asked of the numbers of a vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["finite"]


def finite(vector: Tensor) -> bool:
    """Whether all numbers are finite: by the least and the largest, which a NaN would be.

    `torch.isfinite` makes a second vector on the way, and of a large model that is much.
    """
    if not vector.numel():
        return True
    return all(math.isfinite(end) for end in torch.aminmax(vector.detach()))
