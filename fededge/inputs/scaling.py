"""Scaling of an image to a model's size: the rule of docs/apps.md, in numpy.

The largest centred part with the model's proportions is cropped. Each new pixel is a weighted mean
of the pixels that it covers: first along the rows, then along the columns, rounded to 8 bits after
each. Pillow uses the same weights, but its releases differ in which direction comes first.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

__all__ = ["covered", "fit"]

# Weights are multiples of 2⁻²², so that sums are exact and the same in every language.
BITS, HALF = 22, 1 << 21


def covered(size: tuple[int, int], wanted: tuple[int, int]) -> tuple[float, float]:
    """Width and height of the largest part of an image that has the wanted proportions."""
    (wide, high), (width, height) = size, wanted
    return min(wide, high * width / height), min(high, wide * height / width)


def fit(batch: np.ndarray, height: int, width: int) -> np.ndarray:
    """Crop images uint8 [N, C, H, W] around the centre and scale to [N, C, height, width]."""
    wide, high = covered((batch.shape[3], batch.shape[2]), (width, height))
    rows = _along_rows(batch, wide, width)
    scaled: np.ndarray = _along_rows(rows.swapaxes(2, 3), high, height).swapaxes(2, 3)
    return scaled


def _along_rows(batch: np.ndarray, length: float, size: int) -> np.ndarray:
    """Scale the middle `length` pixels of each row: [N, C, H, W] to [N, C, H, size]."""
    scaled = np.empty((*batch.shape[:3], size), np.uint8)
    for column, (first, weights) in enumerate(_windows(batch.shape[3], length, size)):
        sums = batch[..., first : first + len(weights)] @ weights
        scaled[..., column] = np.minimum((sums + HALF) >> BITS, 255)
    return scaled


@lru_cache(maxsize=64)
def _windows(wide: int, length: float, size: int) -> list[tuple[int, np.ndarray]]:
    """The first old pixel that each new pixel of a row covers, and the weights from there.

    The weights are a triangle around the new pixel's centre, zero at a distance of one new pixel,
    or of one old pixel if that is larger.
    """
    start = (wide - length) / 2
    left, right = np.float32(start), np.float32(start + length)  # float32, as in Pillow
    step = float(right - left) / size
    reach = max(step, 1.0)
    windows = []
    for number in range(size):
        centre = float(left) + (number + 0.5) * step
        first, end = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), wide)
        weights = 1 - np.abs((np.arange(first, end) - centre + 0.5) / reach)
        weights = np.maximum(weights, 0)
        windows.append((first, (weights / weights.sum() * (1 << BITS) + 0.5).astype(np.int32)))
    return windows
