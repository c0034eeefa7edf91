"""A device's examples: where they come from, how a fleet's skew is imitated, how it looks."""

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
