"""Data sets: sources, their partition among simulated devices, and its plot."""

from __future__ import annotations

from fededge.data.dataset import Dataset
from fededge.data.partition import local_split, partition
from fededge.data.plot import plot_partition
from fededge.data.sources import embedded, load, sources
from fededge.inputs.tokens import tokenise

__all__ = [
    "Dataset",
    "embedded",
    "load",
    "local_split",
    "partition",
    "plot_partition",
    "sources",
    "tokenise",
]
