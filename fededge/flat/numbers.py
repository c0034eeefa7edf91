"""What is asked of the numbers of a vector, and how a long one is gone through.

A vector is a tensor where a network is trained, and an array of numpy where models are only sent,
kept and summed. One of them is the other's memory: nothing is copied on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from fededge._internal.lazy_torch import Tensor, torch

__all__ = ["BLOCK", "Vector", "as_numpy", "as_tensors", "blocks", "finite"]

Vector = npt.NDArray[np.float32]

BLOCK = 1 << 18
"""Numbers of a block: 1 MB as float32, which the processor's cache holds."""


def as_numpy(vector: Tensor | Vector) -> Vector:
    """The same numbers for numpy; a copy only if they lie on a GPU."""
    if isinstance(vector, np.ndarray):
        return vector
    array: Vector = vector.detach().cpu().numpy()
    return array


def as_tensors(vectors: Mapping[str, Vector]) -> dict[str, Tensor]:
    """The same numbers for torch."""
    return {name: torch.from_numpy(vector) for name, vector in vectors.items()}


def blocks(first: int, last: int, size: int = BLOCK) -> Iterator[slice]:
    """From `first` to `last` in steps: what is made block by block is never there as a whole."""
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def finite(vector: Tensor | Vector) -> bool:
    """Whether all numbers are finite: by the least and the largest, which a NaN would be.

    `isfinite` makes a second vector on the way, and of a large model that is much.
    """
    numbers = as_numpy(vector)
    return not numbers.size or (math.isfinite(numbers.min()) and math.isfinite(numbers.max()))
