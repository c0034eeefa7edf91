"""Process settings for training: threads and allocator."""

from __future__ import annotations

from fededge._internal.lazy_torch import torch
from fededge.hardware import CPU, Hardware

__all__ = ["prepare_threads", "prepare_training"]


def prepare_threads(hardware: Hardware = CPU) -> None:
    """Set the threads of an op; by default one, because a simulation runs many processes."""
    torch.set_num_threads(hardware.threads)


# glibc keeps freed blocks of up to 32 MiB once one of that size has been freed.
LARGEST_TRANSIENT = (32 << 20) - (64 << 10)


def prepare_training(hardware: Hardware = CPU) -> None:
    """Prepare this process to train: set its threads, and keep freed memory.

    By default glibc returns a step's freed memory to the kernel and faults it in again, page by
    page, in the next step: a third of the time with LeNet. Its threshold adapts to the largest
    freed block, up to 64 MiB, so one large block is allocated and freed; its pages stay untouched.
    Other allocators ignore it.
    """
    prepare_threads(hardware)
    torch.empty(LARGEST_TRANSIENT, dtype=torch.uint8)
