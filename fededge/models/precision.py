"""Precision and memory order of forward passes, set by the hardware that a turn runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from fededge._internal.lazy_torch import Tensor, torch
from fededge.hardware import CPU, Hardware, MemoryFormat, Precision

__all__ = ["autocast", "channels_last", "computing_on"]

_current: ContextVar[Hardware] = ContextVar("hardware", default=CPU)

FULL = nullcontext()


@contextmanager
def computing_on(hardware: Hardware) -> Iterator[None]:
    """Let forward passes use the precision and the memory order of this hardware.

    By default a GPU rounds the inputs of float32 convolutions to TF32, which has 10 bits. Here
    float32 is float32; bfloat16 and float16 are for those who want speed.
    """
    token, rounded = _current.set(hardware), torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = rounded
        _current.reset(token)


def autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return the context of one forward pass: convolutions and matrix products in less precision.

    A context serves one pass. torch keeps lowered copies of the weights until the context ends, and
    the next step changes the weights.
    """
    precision = _current.get().precision
    if precision is Precision.FLOAT32:
        return FULL
    return torch.autocast(x.device.type, getattr(torch, precision.value))


def channels_last(x: Tensor) -> Tensor:
    """Return the images in channels-last memory order; the values stay the same.

    On a CPU, convolution and pooling are up to three times as fast in this order, forward and
    backward. With one channel torch sees no difference and computes in the slow order, unless the
    strides say channels-last.
    """
    if x.dim() != 4 or _current.get().memory_format is MemoryFormat.CONTIGUOUS:
        return x
    if x.shape[1] == 1 and x.is_cpu:
        x = x.contiguous()
        return x.as_strided(x.shape, (x.stride(0), 1, x.stride(2), 1))
    return x.contiguous(memory_format=torch.channels_last)
