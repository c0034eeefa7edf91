"""Layers of a network in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from fededge.ops import _backend, reference
from fededge.ops._backend import kernels

__all__ = ["pooled_convolution"]


def pooled_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, padding: int = 0
) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias, padding=padding), 2)), and its gradient.

    Compiled for float32 on CPUs that multiply and add at once; torch makes the rest. Compiled, what
    it makes of an image does not depend on the others of its batch, nor on how they lie in memory,
    to the last bit. The gradient goes to the largest of each four numbers, as torch's does; what is
    multiplied by a gradient of zero is not looked at. It has no second derivative.

    Args:
        x: images [images, channels, rows, columns], quickest in the order of `channels_last`.
        weight: [outputs, channels, rows, columns].
        bias: [outputs].
        padding: zeros on every side.
    """
    fits = x.is_cpu and x.dtype == torch.float32 and _fuses()
    implementation = kernels(x) if fits else reference
    out: Tensor = implementation.pooled_convolution(x, weight, bias, padding)
    return out


def _fuses() -> bool:
    """True if the processor multiplies and adds at once; without that torch is far quicker."""
    build = _backend.CHOICE.build
    return build is not None and build.get("simd") not in ("sse2", "baseline")
