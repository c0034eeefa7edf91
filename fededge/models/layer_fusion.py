"""Layer fusion: networks that compute the same values faster, with fused or reordered layers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fededge import ops
from fededge.models.base import Classifier

__all__ = ["batch_independent", "for_inference", "for_training", "pooled_first"]

# Layers whose output for an example depends neither on the rest of its batch nor on chance.
BATCH_INDEPENDENT = (
    *(nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Identity, nn.Sequential),
)


# Input channels up to which a fused convolution is faster than torch's layers, with and without the
# backward pass. Measured per layer of the zoo with batches of 10 and 64 (docs/kernels.md).
MOST_CHANNELS_TRAINING = 64
MOST_CHANNELS_INFERENCE = 32


class FastMaxPool(nn.Module):
    """`nn.MaxPool2d(2)` without the positions of the maxima, which only a gradient needs."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[-2:]
        if not x.is_cpu or (self.pool.ceil_mode and (rows % 2 or columns % 2)):
            pooled: Tensor = self.pool(x)
            return pooled
        rows, columns = rows // 2 * 2, columns // 2 * 2
        # Rows first: in `channels_last` order a row is contiguous.
        x = torch.maximum(x[..., 0:rows:2, :], x[..., 1:rows:2, :])
        return torch.maximum(x[..., 0:columns:2], x[..., 1:columns:2])


class FusedConvolution(nn.Module):
    """A convolution, its ReLU and `nn.MaxPool2d(2)` in one pass.

    Without `with_gradient`, it is fused only where no gradient is computed.
    """

    def __init__(self, convolution: nn.Conv2d, pool: nn.MaxPool2d, with_gradient: bool) -> None:
        super().__init__()
        self.convolution = convolution
        self.rest = nn.Sequential(
            pool if with_gradient else _fast_pool(pool), nn.ReLU(inplace=True)
        )
        self.rounds_up = pool.ceil_mode
        self.with_gradient = with_gradient

    def forward(self, x: Tensor) -> Tensor:
        convolution = self.convolution
        padding = int(convolution.padding[0])
        if not self._can_fuse(x, 2 * padding):
            made: Tensor = self.rest(convolution(x))
            return made
        return ops.pooled_convolution(x, convolution.weight, convolution.bias, padding)

    def _can_fuse(self, x: Tensor, added: int) -> bool:
        if torch.is_grad_enabled() and not self.with_gradient:
            return False
        if not (x.is_cpu and x.dtype == torch.float32 and x.dim() == 4):
            return False
        if torch.is_autocast_enabled("cpu"):
            return False
        if torch._C._len_torch_dispatch_stack():  # such as a FLOP counter, which knows torch's ops
            return False
        sides = zip(x.shape[2:], self.convolution.kernel_size, strict=True)
        odd = any((side + added - kernel) % 2 == 0 for side, kernel in sides)
        return not (self.rounds_up and odd)


def pooled_first(module: nn.Module) -> nn.Module:
    """Return the network with max pooling before ReLU; parameters are shared, all bits the same.

    Both orders have the same output and gradient, but after pooling only a quarter of the numbers
    is left for the ReLU. An exported model keeps its order, in which runtimes fuse a convolution
    with the ReLU that follows it.
    """
    return _reordered(module, _pooled_first)


def for_training(module: nn.Module) -> nn.Module:
    """Return the network that local training runs: convolutions are fused where that is faster.

    Parameters are shared. A fused convolution adds in another order than torch: the values are the
    same to float32 accuracy, the last bits differ.
    """
    return _reordered(module, _for_training)


def for_inference(module: nn.Module) -> nn.Module:
    """Return the network for passes without a gradient: fused convolutions, faster pooling.

    Parameters are shared. The last bits of a fused convolution differ from torch's.
    """
    return _reordered(module, _for_inference)


def _pooled_first(stages: list[nn.Module]) -> None:
    for i, pool in _relu_pools(stages):
        stages[i : i + 2] = pool, stages[i]


def _for_training(stages: list[nn.Module]) -> None:
    _fuse(stages, with_gradient=True)
    _pooled_first(stages)


def _for_inference(stages: list[nn.Module]) -> None:
    _fuse(stages, with_gradient=False)
    for i, pool in _relu_pools(stages):
        stages[i : i + 2] = _fast_pool(pool), nn.ReLU(inplace=True)


def _fuse(stages: list[nn.Module], with_gradient: bool) -> None:
    """Replace each convolution, its ReLU and its max pooling by one stage."""
    most = MOST_CHANNELS_TRAINING if with_gradient else MOST_CHANNELS_INFERENCE
    for i, pool in reversed(_relu_pools(stages)):
        before = stages[i - 1] if i else None
        if isinstance(before, nn.Conv2d) and _is_two_by_two(pool) and _fuses(before, most):
            stages[i - 1 : i + 2] = [FusedConvolution(before, pool, with_gradient)]


def _relu_pools(stages: Sequence[nn.Module]) -> list[tuple[int, nn.MaxPool2d]]:
    """Return the position of each ReLU that max pooling follows, and the pooling."""
    return [
        (i, pool)
        for i, (relu, pool) in enumerate(itertools.pairwise(stages))
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices
    ]


def _fuses(convolution: nn.Conv2d, most: int) -> bool:
    """Return True if `ops.pooled_convolution` supports it, and is faster than torch's layers."""
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
    """Return a copy of the module with these children and its hooks; itself if they are its own."""
    if list(children.values()) == list(module.children()):
        return module
    other = copy.copy(module)
    other._modules = dict(children)
    return other


def batch_independent(module: nn.Module) -> bool:
    """Return True if each example's output is known not to depend on the rest of its batch."""
    return all(type(part) in BATCH_INDEPENDENT for part in module.modules())


def _fast_pool(pool: nn.MaxPool2d) -> nn.Module:
    return FastMaxPool(pool) if _is_two_by_two(pool) else pool


def _is_two_by_two(pool: nn.MaxPool2d) -> bool:
    return (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (2, 2, 0, 1)
