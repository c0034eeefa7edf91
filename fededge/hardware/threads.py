"""The CPU threads of a training process."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["threads_for", "with_passive_threads"]

THREADED_MACS = 1e7
"""Multiply-accumulates of one input from which more than one thread is faster.

LeNet has 1.6 million for 32 x 32 pixels, ResNet-8 has 12 million, ResNet-20 has 41 million.
"""


def threads_for(macs: float, cores: int) -> int:
    """The fastest number of threads to train a network on the CPU.

    Starting and joining threads costs more than they save in a small network.

    Args:
        macs: the network's multiply-accumulates for one input.
        cores: the cores that the process may use.
    """
    return cores if macs >= THREADED_MACS else 1


def with_passive_threads(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that will import torch: its threads sleep while they wait.

    By default they spin, and on a busy machine they spin while the thread that they wait for has no
    core: ResNet-20 with two threads took five times as long. The user's own setting has precedence.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", **environ}
