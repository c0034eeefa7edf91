"""An emulated accelerator: a torch device, `emulated`, whose memory the host cannot touch.

It runs torch's ops on the CPU and FedEdge's fused ops by their CUDA device code. It counts copies,
synchronisations, allocations and launches, and fails where a test orders it to.
"""

from __future__ import annotations

from tests.accelerator.building import environment, load
from tests.accelerator.control import (
    Counts,
    counting,
    counts,
    fail_allocation,
    fail_launch,
    limited_memory,
)

__all__ = [
    "Counts",
    "counting",
    "counts",
    "environment",
    "fail_allocation",
    "fail_launch",
    "limited_memory",
    "load",
]
