"""Layers of a network in one pass, where no gradient is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from fededge.ops import reference
from fededge.ops._backend import kernels

__all__ = ["pooled_convolution"]


def pooled_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, padding: int = 0
) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias, padding=padding), 2)), which has no gradient.

    Compiled for float32 on the CPU; of anything else torch makes it. What it makes of an image does
    not depend on the others of its batch, to the last bit, nor on how they lie in memory.

    Args:
        x: images [images, channels, rows, columns], quickest in the order of `channels_last`.
        weight: [outputs, channels, rows, columns].
        bias: [outputs].
        padding: zeros on every side.
    """
    fits = x.is_cpu and x.dtype == torch.float32
    implementation = kernels(x) if fits else reference
    out: Tensor = implementation.pooled_convolution(x, weight, bias, padding)
    return out
