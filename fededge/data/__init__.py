"""A device's images: where they come from, how a fleet's skew is imitated, what it looks like."""

from __future__ import annotations

from fededge.data.dataset import Dataset
from fededge.data.partition import local_split, partition
from fededge.data.plot import plot_partition
from fededge.data.sources import embedded, load, sources

__all__ = [
    "Dataset",
    "embedded",
    "load",
    "local_split",
    "partition",
    "plot_partition",
    "sources",
]
