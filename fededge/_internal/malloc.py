"""Settings of glibc's malloc for a process that runs for months."""

from __future__ import annotations

import ctypes

__all__ = ["return_free_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE = 1 << 20
"""Blocks from this size on get pages of their own: a wire chunk is smaller, a layer larger."""

SPARE = 8 << 20
"""Free bytes that may stay at the end of the heap."""


def return_free_memory() -> None:
    """Fix glibc's thresholds, so that freed memory goes back to the system.

    By default each large block that is freed raises the thresholds, up to 32 and 64 MB. From then
    on a model's blocks come from the heap, which keeps all memory below the last block in use.
    Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, SPARE)
