"""A data set in memory: pixels with their normalisation statistics, or tokens; and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fededge._internal.lazy_torch import Tensor, torch
from fededge.errors import DataError

__all__ = ["Dataset", "statistics"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pixels `x` (uint8 [N, C, H, W]) and class numbers `y` (int64 [N]).

    `mean` and `std` hold one value per channel, of training pixels scaled to 0..1.
    Texts are tokens `x` (int64 [N, L]) from 0 up to, not including, `vocabulary`, without mean and
    std. `skipped` counts the files of the source that cannot be read and were left out.
    """

    x: Tensor
    y: Tensor
    labels: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vocabulary: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        x, y, classes = self.x, self.y, len(self.labels)
        if self.vocabulary:
            _check_texts(x, self.vocabulary)
        elif x.dtype != torch.uint8 or x.ndim != 4:
            raise DataError(f"images must be uint8 [N, C, H, W], got {x.dtype} {list(x.shape)}")
        if y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise DataError(f"{len(x)} examples need int64 labels, got {y.dtype} {list(y.shape)}")
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise DataError(f"labels {y.min()} to {y.max()} do not fit {classes} classes")
        channels = 0 if self.vocabulary else x.shape[1]
        if not len(self.mean) == len(self.std) == channels:
            raise DataError(f"mean and std must have one value for each of {channels} channels")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of every image, or the length of every text."""
        return tuple(self.x.shape[1:])

    def subset(self, indices: Sequence[int] | np.ndarray | Tensor) -> Dataset:
        """Return the examples at these positions, in this order, with the same statistics."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return replace(self, x=self.x[index], y=self.y[index])

    def counts(self) -> Tensor:
        """Return the number of examples of each class (int64 [classes])."""
        return torch.bincount(self.y, minlength=len(self.labels))


def _check_texts(x: Tensor, vocabulary: int) -> None:
    if x.dtype != torch.int64 or x.ndim != 2:
        raise DataError(f"texts must be int64 [N, L], got {x.dtype} {list(x.shape)}")
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < vocabulary:
        raise DataError(f"tokens {x.min()} to {x.max()} do not fit a vocabulary of {vocabulary}")


def statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each channel's mean and standard deviation, of pixels scaled to 0..1.

    Computed from a histogram of the 256 values: exact, and equal on every machine. A constant
    channel gets a deviation of one grey level, 1/255, to avoid a division by zero.
    """
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(x.shape[1]):
        histogram = torch.bincount(x[:, channel].flatten(), minlength=256).numpy()
        share = histogram / histogram.sum()
        centre = float(share @ values)
        mean.append(centre)
        std.append(max(float(share @ (values - centre) ** 2) ** 0.5, 1 / 255))
    return tuple(mean), tuple(std)
