"""The same values in less time: networks with their stages in a better order to compute."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fededge.models.base import Classifier

__all__ = ["apart", "pooled_first", "untrained"]

# What these make of an example does not depend on the others of its batch, nor on chance.
APART = (
    *(nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Identity, nn.Sequential),
)


class Halved(nn.Module):
    """`nn.MaxPool2d(2)` without a note of where each maximum was, which nobody asks for."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[2:]
        if not x.is_cpu or (self.pool.ceil_mode and (rows % 2 or columns % 2)):
            pooled: Tensor = self.pool(x)
            return pooled
        rows, columns = rows // 2 * 2, columns // 2 * 2
        # Rows first: in the order of `channels_last` two of them are two long runs of memory.
        x = torch.maximum(x[:, :, 0:rows:2], x[:, :, 1:rows:2])
        return torch.maximum(x[:, :, :, 0:columns:2], x[:, :, :, 1:columns:2])


def pooled_first(module: nn.Module) -> nn.Module:
    """A network or its stages, to be trained: parameters are shared, all bits are the same.

    The largest of rectified numbers is the largest of the numbers, rectified, and has the same
    gradient: pooled first, only a quarter is left to rectify. An exported model keeps its order,
    in which runtimes fuse a convolution with the rectifier that follows it.
    """
    return _reordered(module, lambda pool, relu: (pool, relu))


def untrained(module: nn.Module) -> nn.Module:
    """The same for passes without a gradient, with pooling that is quicker still."""
    return _reordered(module, lambda pool, _: (_halved(pool), nn.ReLU(inplace=True)))


Pair = Callable[[nn.MaxPool2d, nn.ReLU], Sequence[nn.Module]]


def _reordered(module: nn.Module, pair: Pair) -> nn.Module:
    if type(module) is Classifier:
        return _with(module, {"body": _reordered(module.body, pair), "head": module.head})
    if type(module) is not nn.Sequential:
        return module
    stages = list(module)
    for i, (first, second) in enumerate(itertools.pairwise(module)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices:
            stages[i : i + 2] = pair(second, first)
    return _with(module, {str(i): stage for i, stage in enumerate(stages)})


def _with(module: nn.Module, children: dict[str, nn.Module]) -> nn.Module:
    """The module with these children, and with its hooks; itself if it has them already."""
    if list(children.values()) == list(module.children()):
        return module
    other = copy.copy(module)
    other._modules = dict(children)
    return other


def apart(module: nn.Module) -> bool:
    """Whether a module, as far as it is known, treats each example alone: any batches will do."""
    return all(type(part) in APART for part in module.modules())


def _halved(pool: nn.MaxPool2d) -> nn.Module:
    sides = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return Halved(pool) if sides == (2, 2, 0, 1) else pool
