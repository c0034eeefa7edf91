"""Layers that are passed without a gradient: the same values, in less time."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fededge.models.base import Classifier

__all__ = ["apart", "untrained"]

# What these make of an example does not depend on the others of its batch, nor on chance.
APART = (
    *(nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Identity, nn.Sequential),
)


class Halved(nn.Module):
    """`nn.MaxPool2d(2)` without a note of where each maximum was, which nobody asks for."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cpu:
            return F.max_pool2d(x, 2)
        rows, columns = (side // 2 * 2 for side in x.shape[2:])
        # Rows first: in the order of `channels_last` two of them are two long runs of memory.
        x = torch.maximum(x[:, :, 0:rows:2], x[:, :, 1:rows:2])
        return torch.maximum(x[:, :, :, 0:columns:2], x[:, :, :, 1:columns:2])


def untrained(module: nn.Module) -> nn.Module:
    """A network or its stages for passes without a gradient: parameters are shared, bits the same.

    The largest of rectified numbers is the largest of the numbers, rectified: pooled first, only
    a quarter is left to rectify.
    """
    if type(module) is Classifier:
        return Classifier(untrained(module.body), module.head)
    if type(module) is not nn.Sequential:
        return module
    stages = list(module)
    for i, (first, second) in enumerate(itertools.pairwise(stages)):
        if type(first) is nn.ReLU and _halves(second):
            stages[i : i + 2] = [Halved(), nn.ReLU(inplace=True)]
    return nn.Sequential(*stages)


def apart(module: nn.Module) -> bool:
    """Whether a module, as far as it is known, treats each example alone: any batches will do."""
    return all(type(part) in APART for part in module.modules())


def _halves(stage: nn.Module) -> bool:
    if type(stage) is not nn.MaxPool2d:
        return False
    sides = (stage.kernel_size, stage.stride, stage.padding, stage.dilation)
    return sides == (2, 2, 0, 1) and not (stage.ceil_mode or stage.return_indices)
