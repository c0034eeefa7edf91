"""Inputs of the flat-vector ops' tests: sizes around a thread's share, and seeded vectors."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from fededge.ops import _backend

__all__ = ["GRAIN", "SEEDS", "SIZES", "many", "vectors"]

GRAIN: int = (_backend.CHOICE.build or {}).get("grain", 32768)
SIZES = st.one_of(
    st.sampled_from([0, 1, 7, 64, GRAIN - 1, GRAIN, GRAIN + 1, 3 * GRAIN + 5]),
    st.integers(0, 300),
)
SEEDS = st.integers(0, 2**31 - 1)
# The implementation is chosen once for all examples of a test: that is what is wanted.
many = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def vectors(size: int, seed: int, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in range(count)]
