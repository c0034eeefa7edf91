"""The same values in less time: networks with their stages in a better order to compute."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fededge import ops
from fededge.models.base import Classifier

__all__ = ["apart", "pooled_first", "trained", "untrained"]

# What these make of an example does not depend on the others of its batch, nor on chance.
APART = (
    *(nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Identity, nn.Sequential),
)


# Input channels up to which a fused convolution is faster than torch's layers, with and without the
# backward pass. Measured per layer of the zoo with batches of 10 and 64 (docs/kernels.md).
MOST_TRAINED = 64
MOST_UNTRAINED = 32


class Halved(nn.Module):
    """`nn.MaxPool2d(2)` without a note of where each maximum was, which nobody asks for."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[-2:]
        if not x.is_cpu or (self.pool.ceil_mode and (rows % 2 or columns % 2)):
            pooled: Tensor = self.pool(x)
            return pooled
        rows, columns = rows // 2 * 2, columns // 2 * 2
        # Rows first: in the order of `channels_last` two of them are two long runs of memory.
        x = torch.maximum(x[..., 0:rows:2, :], x[..., 1:rows:2, :])
        return torch.maximum(x[..., 0:columns:2], x[..., 1:columns:2])


class Convolved(nn.Module):
    """A convolution, its rectifier and `nn.MaxPool2d(2)` in one pass, if wanted `with_gradient`."""

    def __init__(self, convolution: nn.Conv2d, pool: nn.MaxPool2d, with_gradient: bool) -> None:
        super().__init__()
        self.convolution = convolution
        self.rest = nn.Sequential(pool if with_gradient else _halved(pool), nn.ReLU(inplace=True))
        self.rounds_up = pool.ceil_mode
        self.with_gradient = with_gradient

    def forward(self, x: Tensor) -> Tensor:
        convolution = self.convolution
        padding = int(convolution.padding[0])
        if not self._in_one(x, 2 * padding):
            made: Tensor = self.rest(convolution(x))
            return made
        return ops.pooled_convolution(x, convolution.weight, convolution.bias, padding)

    def _in_one(self, x: Tensor, added: int) -> bool:
        if torch.is_grad_enabled() and not self.with_gradient:
            return False
        if not (x.is_cpu and x.dtype == torch.float32 and x.dim() == 4):
            return False
        if torch.is_autocast_enabled("cpu"):
            return False
        if torch._C._len_torch_dispatch_stack():  # who counts operations knows torch's
            return False
        sides = zip(x.shape[2:], self.convolution.kernel_size, strict=True)
        odd = any((side + added - kernel) % 2 == 0 for side, kernel in sides)
        return not (self.rounds_up and odd)


def pooled_first(module: nn.Module) -> nn.Module:
    """Torch's own layers in a faster order: parameters are shared, all bits are the same.

    The largest of rectified numbers is the largest of the numbers, rectified, and has the same
    gradient: pooled first, only a quarter is left to rectify. An exported model keeps its order,
    in which runtimes fuse a convolution with the rectifier that follows it.
    """
    return _reordered(module, _pooled_first)


def trained(module: nn.Module) -> nn.Module:
    """The network that local training runs: convolutions fused with their pooling where faster.

    Parameters are shared. Fused sums are made in another order than torch's: same values to float32
    accuracy, other last bits.
    """
    return _reordered(module, _trained)


def untrained(module: nn.Module) -> nn.Module:
    """The same for passes without a gradient: quicker pooling, and convolutions fused with it.

    The sums of a fused convolution are made in another order than torch's: its last bits differ.
    """
    return _reordered(module, _untrained)


def _pooled_first(stages: list[nn.Module]) -> None:
    for i, pool in _rectified_pools(stages):
        stages[i : i + 2] = pool, stages[i]


def _trained(stages: list[nn.Module]) -> None:
    _fuse(stages, with_gradient=True)
    _pooled_first(stages)


def _untrained(stages: list[nn.Module]) -> None:
    _fuse(stages, with_gradient=False)
    for i, pool in _rectified_pools(stages):
        stages[i : i + 2] = _halved(pool), nn.ReLU(inplace=True)


def _fuse(stages: list[nn.Module], with_gradient: bool) -> None:
    """Make one stage of each convolution that a rectifier and a pool follow."""
    most = MOST_TRAINED if with_gradient else MOST_UNTRAINED
    for i, pool in reversed(_rectified_pools(stages)):
        before = stages[i - 1] if i else None
        if isinstance(before, nn.Conv2d) and _halves(pool) and _fuses(before, most):
            stages[i - 1 : i + 2] = [Convolved(before, pool, with_gradient)]


def _rectified_pools(stages: Sequence[nn.Module]) -> list[tuple[int, nn.MaxPool2d]]:
    """Where a rectifier stands before a pool."""
    return [
        (i, pool)
        for i, (relu, pool) in enumerate(itertools.pairwise(stages))
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices
    ]


def _fuses(convolution: nn.Conv2d, most: int) -> bool:
    """True if `ops.pooled_convolution` computes it, and in less time than torch's layers."""
    shape = (convolution.stride, convolution.dilation, convolution.groups)
    padding, hooks = convolution.padding, convolution._forward_hooks
    return (
        type(convolution) is nn.Conv2d
        and shape == ((1, 1), (1, 1), 1)
        and (isinstance(padding, tuple) and padding[0] == padding[1])
        and convolution.padding_mode == "zeros"
        and convolution.in_channels <= most
        and not (hooks or convolution._forward_pre_hooks)
    )


def _reordered(module: nn.Module, reorder: Callable[[list[nn.Module]], None]) -> nn.Module:
    if type(module) is Classifier:
        return _with(module, {"body": _reordered(module.body, reorder), "head": module.head})
    if type(module) is not nn.Sequential:
        return module
    stages = list(module)
    reorder(stages)
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
    return Halved(pool) if _halves(pool) else pool


def _halves(pool: nn.MaxPool2d) -> bool:
    return (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (2, 2, 0, 1)
