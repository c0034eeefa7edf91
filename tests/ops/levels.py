"""The instruction sets of this machine, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["UNFUSED", "each_level"]

UNFUSED = ("sse2", "baseline")
"""Levels without fused multiply-add, which round twice where the others round once."""


def each_level() -> Iterator[str]:
    """Their names; what runs meanwhile is compiled for the one that was given last."""
    from fededge import _C

    levels = _C.facts()["simd_levels"]
    try:
        for level in levels:
            _C.limit_simd(level)
            yield level
    finally:
        _C.limit_simd(levels[-1])
