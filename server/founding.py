"""The federation's network, which a coordinator builds once: its layout and its first values.

That takes torch, and nothing later does unless the coordinator evaluates. So it happens in a
process of its own, which is gone afterwards with all its memory, unless torch is here already.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from fededge import methods, models
from fededge.errors import StoreError
from fededge.flat import FlatModel, Layout, Vector, as_numpy
from fededge.late import torch_is_loaded
from fededge.spec import ModelSpec

__all__ = ["Founded", "found"]


class Founded(NamedTuple):
    """What every coordinator of the federation must know of its network."""

    layout: Layout
    first: Vector


def found(spec: ModelSpec, seed: int, method: str) -> Founded:
    """Build the network, and refuse one that the method cannot train."""
    if torch_is_loaded():
        return _build(spec, seed, method)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_build, spec, seed, method).result()
        except BrokenProcessPool:
            raise StoreError(
                "the process that builds the network was killed; is there enough memory for torch?"
            ) from None


def _build(spec: ModelSpec, seed: int, method: str) -> Founded:
    net = FlatModel(models.build_for(spec, seed), trains=False)
    methods.method(method).needs(net.module)
    return Founded(net.layout, as_numpy(net.vector))
