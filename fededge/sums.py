"""Sums of models that lie in arrays of numpy: what a coordinator does, without torch.

Compiled where it was built (`csrc/sums/buffers.cpp`), numpy everywhere else, with the same bits.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from fededge.flat.numbers import Vector

__all__ = ["accumulate_", "implementation"]

Sum = npt.NDArray[np.float64]


def _load() -> Any:
    """The compiled module, or None: pure Python serves as well, only slower."""
    if os.environ.get("FEDEDGE_OPS") == "reference":
        return None
    try:
        return importlib.import_module("fededge._sums")
    except ImportError:
        if os.environ.get("FEDEDGE_REQUIRE_EXT") == "1":
            raise
        return None


_COMPILED = _load()


def implementation() -> str:
    """What the sums are made by."""
    return "numpy" if _COMPILED is None else f"compiled ({_COMPILED.simd_level()})"


def accumulate_(acc: Sum, x: Vector, weight: float) -> None:
    """`acc += weight * x`, in float64."""
    if _COMPILED is None:
        acc += weight * x.astype(np.float64)
    else:
        _COMPILED.accumulate_buffer(acc, np.ascontiguousarray(x, np.float32), weight)
