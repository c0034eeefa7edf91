"""Weighted sums of models in numpy arrays, for the coordinator, without torch.

The compiled module (`csrc/sums/buffers.cpp`) and the numpy fallback give the same bits.
FEDEDGE_OPS and FEDEDGE_REQUIRE_EXT have the same meaning as for the ops.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fededge._internal.compiled import choose
from fededge.flat.numbers import Vector

__all__ = ["accumulate_", "implementation"]

Sum = npt.NDArray[np.float64]


def implementation() -> str:
    """The implementation in use, and the reason for it."""
    return f"{'numpy' if CHOICE.name == 'reference' else 'compiled'}: {CHOICE.reason}"


def accumulate_(acc: Sum, x: Vector, weight: float) -> None:
    """`acc += weight * x`, in float64."""
    if CHOICE.name == "reference":
        acc += weight * x.astype(np.float64)
        return
    from fededge import _sums

    _sums.accumulate_buffer(acc, np.ascontiguousarray(x, np.float32), weight)


def load_module() -> Mapping[str, Any]:
    """Import the compiled module; return the instruction set that it uses."""
    from fededge import _sums

    return {"simd": _sums.simd_level()}


CHOICE = choose(os.environ, load_module, "numpy")
