"""Local training in plain torch and double precision: what the methods are held against.

Nothing here knows of FedEdge but the order of a flat vector: parameters, then float buffers. Every
batch is all of the data, so that the order of examples has no part in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.flat import FlatModel
from fededge.models.base import Classifier
from fededge.training import Examples

__all__ = ["LR", "Loss", "Pull", "close", "cross_entropy", "curved", "descend", "look"]

LR, MOMENTUM, DECAY = 0.1, 0.9, 0.01

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From logits, features and labels."""

Pull = Callable[[Tensor], Tensor]
"""A correction that is added to the gradient, computed from the current vector."""


def curved(seed: int = 0) -> FlatModel:
    """A network for 2x2 images whose features are learned and normalised over the batch."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh()]
        return FlatModel(Classifier(nn.Sequential(*layers), nn.Linear(5, 3)))


def cross_entropy(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y)


def descend(
    net: FlatModel,
    w: Tensor,
    data: Examples,
    steps: int,
    loss: Loss = cross_entropy,
    pull: Pull | None = None,
    momentum: float = MOMENTUM,
) -> Tensor:
    """The result of some steps of torch's SGD from `w`; learning rate 0.1, weight decay 0.01."""
    module = _at(net, w).train()
    sgd = torch.optim.SGD(module.parameters(), lr=LR, momentum=momentum, weight_decay=DECAY)
    for _ in range(steps):
        sgd.zero_grad()
        extra = torch.zeros_like(w) if pull is None else pull(_vector(module))
        h = module.body(data.x.double() / 255)
        loss(module.head(h), h, data.y).backward()
        for parameter, add in zip(module.parameters(), _split(module, extra), strict=False):
            assert parameter.grad is not None
            parameter.grad += add
        sgd.step()
    return _vector(module)


def look(net: FlatModel, w: Tensor, data: Examples) -> tuple[Tensor, Tensor]:
    """Logits and features of a fixed model, in evaluation mode."""
    module = _at(net, w).eval()
    with torch.no_grad():
        h = module.body(data.x.double() / 255)
        return module.head(h), h


def close(a: Tensor, b: Tensor, atol: float = 2e-5) -> bool:
    return torch.allclose(a.double(), b.double(), atol=atol, rtol=0)


def _at(net: FlatModel, w: Tensor) -> Classifier:
    module = copy.deepcopy(net.module).double()
    assert isinstance(module, Classifier)
    with torch.no_grad():
        for tensor, value in zip(_tensors(module), _split(module, w.double()), strict=True):
            tensor.copy_(value)
    return module


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]


def _vector(module: nn.Module) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in _tensors(module)])


def _split(module: nn.Module, w: Tensor) -> list[Tensor]:
    tensors = _tensors(module)
    parts = w.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
