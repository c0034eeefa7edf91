"""Memory that runs out during a turn: smaller micro-batches first, then a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fededge._internal.lazy_torch import nn, torch
from fededge.errors import HardwareError
from fededge.flat import FlatModel
from fededge.method.base import Batch
from fededge.method.stack import Stack
from fededge.method.turn import Turn
from fededge.training.placement import free_bytes

__all__ = ["device_errors", "halved", "release_memory", "without_shortage"]

SHORTAGES = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "NVML_SUCCESS == ",
)
"""Errors of memory that ran out which are no `torch.OutOfMemoryError`.

They come from the CPU's allocator, the driver and its libraries. On a Jetson, which has no complete
NVML, the last one comes from torch: it asks NVML who holds the memory, and that fails.
"""


@contextmanager
def without_shortage() -> Iterator[None]:
    """End the block quietly where memory runs out."""
    try:
        yield
    except RuntimeError as error:
        if not _is_shortage(error):
            raise


def halved(method: Stack, turn: Turn, models: Sequence[FlatModel], batch: Batch) -> int:
    """Return the next smaller micro-batch for a batch that did not fit into memory.

    Gradients of the parts add up to the batch's gradient, unless the examples of a batch affect
    each other: by batch norm, or by the method's loss.
    """
    size = turn.micro_batch or len(batch.x)
    device = turn.net.vector.device
    release_memory(device)
    mixing = any(_mixes(part) for model in models for part in model.module.modules())
    if size > 1 and method.by_example() and not mixing:
        return (size + 1) // 2
    why = "batch norm needs whole batches: " if mixing else ""
    raise HardwareError(
        f"device {turn.device}, round {turn.number + 1}, step {turn.steps + 1}: "
        f"{_shortage(device)} while {size} examples were trained; {why}"
        "lower batch_size, or choose a smaller network"
    )


@contextmanager
def device_errors(device: torch.device, what: str) -> Iterator[None]:
    """Turn a failure of an accelerator into one sentence."""
    problem = ""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if _is_shortage(error):
            problem = f"{_shortage(device)}; lower batch_size, or choose a smaller network"
        elif _of_device(error, device):
            problem = f"{device} failed: {str(error).splitlines()[0]}"
        else:
            raise
    if problem:  # raised here: the first error's traceback would keep the tensors alive
        release_memory(device)
        raise HardwareError(f"{what}: {problem}")


def _mixes(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training


def _is_shortage(error: RuntimeError) -> bool:
    """Return True if memory ran out; torch has a class for its own allocator on a GPU only."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(each in text for each in SHORTAGES)


def _of_device(error: RuntimeError, device: torch.device) -> bool:
    """Return True if the accelerator failed, and not the code that uses it."""
    accelerator_error = getattr(torch, "AcceleratorError", ())  # since torch 2.8
    causes = (f"{device.type} error", "cudnn error", "cublas error")
    named = any(cause in str(error).lower() for cause in causes)
    return isinstance(error, accelerator_error) or (device.type != "cpu" and named)


def _shortage(device: torch.device) -> str:
    if device.type == "cpu":
        return "memory ran out"
    memory = free_bytes(device)
    if memory is None:
        return f"{device} is out of memory"
    free, total = (number / 2**20 for number in memory)
    return f"{device} is out of memory ({free:.0f} MB free of {total:.0f} MB)"


def release_memory(device: torch.device) -> None:
    """Give blocks that torch keeps for later back to an accelerator."""
    if device.type == "cpu":
        return
    empty_cache = getattr(torch.get_device_module(device.type), "empty_cache", None)
    if empty_cache is not None:
        empty_cache()
