"""Vectors as tensors and numpy arrays, iterated in blocks, checked for finite numbers.

Training uses tensors; code that only sends, stores and sums models uses numpy arrays. Both share
memory: a conversion does not copy.
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
"""Numbers in a block: 1 MB of float32, which fits the processor's cache."""


def as_numpy(vector: Tensor | Vector) -> Vector:
    """Return the same numbers as a numpy array; a copy only from a GPU."""
    if isinstance(vector, np.ndarray):
        return vector
    array: Vector = vector.detach().cpu().numpy()
    return array


def as_tensors(vectors: Mapping[str, Vector]) -> dict[str, Tensor]:
    """Return the same numbers as tensors."""
    return {name: torch.from_numpy(vector) for name, vector in vectors.items()}


def blocks(first: int, last: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield the blocks from `first` to `last`: results per block keep memory small."""
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def finite(vector: Tensor | Vector) -> bool:
    """Return True if all numbers are finite, from minimum and maximum, which propagate NaN.

    `isfinite` would allocate a second vector.
    """
    numbers = as_numpy(vector)
    return not numbers.size or (math.isfinite(numbers.min()) and math.isfinite(numbers.max()))
