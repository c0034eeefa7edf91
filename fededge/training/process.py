"""Settings of a process that trains: its threads and its allocator."""

from __future__ import annotations

from fededge._internal.lazy_torch import torch

__all__ = ["prepare_threads", "prepare_training"]


def prepare_threads() -> None:
    """Small models train fastest with one thread a process; a fleet simulation has one each."""
    torch.set_num_threads(1)


# glibc takes blocks of up to 32 MiB for transient once one of that size has been freed.
LARGEST_TRANSIENT = (32 << 20) - (64 << 10)


def prepare_training() -> None:
    """Make this process ready to train small models: one thread, and memory that is kept.

    Of its own accord glibc hands what a step frees back to the kernel, and takes it again, page by
    page, in the next one: with LeNet that is a third of the time. It learns from the largest block
    that it sees freed what is worth keeping, up to 64 MiB, so it is shown one; nothing touches its
    pages. Other allocators take no notice.
    """
    prepare_threads()
    torch.empty(LARGEST_TRANSIENT, dtype=torch.uint8)
