"""Byzantine-robust aggregation: median, trimmed mean and Krum.

The updates are rows of a file, which is read in blocks of columns, so that memory does not grow
with their number. The disk holds all of them once, as float32.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fededge.errors import ConfigError
from fededge.federated.aggregation import Update
from fededge.flat import Vector, blocks
from fededge.storage.files import disk_error

__all__ = ["Rows", "krum", "median", "norm_of", "trimmed_mean"]

BLOCK_NUMBERS = 1 << 21
"""Numbers per block, of all updates together: 16 MB in float64, in which no sum overflows."""

Column = np.ndarray[tuple[int], np.dtype[np.float64]]
Block = np.ndarray[tuple[int, int], np.dtype[np.float32]]


class Rows:
    """The updates of a round, one per row, in a temporary file."""

    def __init__(self, path: Path, devices: Sequence[str], size: int) -> None:
        self.path = path
        self.devices = list(devices)
        self.size = size

    def fill(self, update: Callable[[str], Update]) -> None:
        with self._on_disk(), self.path.open("wb") as file:
            for device in self.devices:
                model = update(device)
                for span in blocks(0, self.size):
                    file.write(np.ascontiguousarray(model[span], np.float32).data)

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_error(self.path, error) from None

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield blocks of columns in order: their span, and their numbers with a row per device."""
        count = len(self.devices)
        width = max(1, BLOCK_NUMBERS // count)
        rows = np.memmap(self.path, np.float32, "r", shape=(count, self.size))
        for first in range(0, self.size, width):
            where = slice(first, min(first + width, self.size))
            yield where, np.array(rows[:, where])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def median(rows: Rows) -> Vector:
    """The median of each number; for an even count, the mean of the middle two."""
    return _by_column(rows, lambda block: np.median(block.astype(np.float64), axis=0))


def trimmed_mean(rows: Rows, trim: float) -> Vector:
    """The mean of each number without the smallest and the largest values.

    Args:
        rows: the updates.
        trim: share of the devices that is left out at either end, rounded down.
    """
    count = len(rows.devices)
    cut = int(trim * count)

    def mean(block: Block) -> Column:
        block.sort(axis=0)
        kept = block[cut : count - cut].astype(np.float64)
        return kept.mean(axis=0)  # type: ignore[no-any-return]

    return _by_column(rows, mean)


def krum(rows: Rows, byzantine: int) -> str:
    """The device whose update is nearest to its n - f - 2 nearest others (Blanchard et al. 2017).

    Ties go to the first device by id.
    """
    count = len(rows.devices)
    near = count - byzantine - 2
    if near < 1:
        raise ConfigError(
            f"robust.combine is krum, which needs more than byzantine + 2 = {byzantine + 2} "
            f"updates, and the round has {count}; raise rounds.quorum"
        )
    distances = np.zeros((count, count))
    for _, block in rows.blocks():
        for one in range(count):
            difference = block.astype(np.float64) - block[one]
            distances[one] += np.einsum("ij,ij->i", difference, difference)
    np.fill_diagonal(distances, np.inf)
    scores = np.sort(distances, axis=1)[:, :near].sum(axis=1)
    return rows.devices[int(scores.argmin())]


def norm_of(size: int, part: Callable[[slice], Vector]) -> float:
    """The Euclidean norm, in float64, of a vector that is computed span by span."""
    squares = 0.0
    for span in blocks(0, size):
        squares += float(np.square(part(span), dtype=np.float64).sum())
    return math.sqrt(squares)


def _by_column(
    rows: Rows, reduce: Callable[[Block], np.ndarray[tuple[int], np.dtype[np.float64]]]
) -> Vector:
    out = np.empty(rows.size, dtype=np.float32)
    for where, block in rows.blocks():
        out[where] = reduce(block)
    return out
