"""Memory that goes back to the system when it is free, in a process that lives for months."""

from __future__ import annotations

import ctypes

__all__ = ["return_free_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE = 1 << 20
"""Bytes of a block that has pages of its own: a chunk of the wire has fewer, a layer more."""

SPARE = 8 << 20
"""Bytes that may lie free at the end of the heap."""


def return_free_memory() -> None:
    """Have glibc keep its first thresholds; where there is another C library, do nothing.

    By default each large block that is freed raises them, up to 32 and 64 MB: from then on the
    blocks of a model come from the heap, which keeps what lies below the last one in use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, SPARE)
