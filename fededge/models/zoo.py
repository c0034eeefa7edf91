"""Which networks there are, and how one is built with weights that depend on its seed alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from fededge.errors import ConfigError
from fededge.models import lenet, mlpnet, tfcnn
from fededge.models.base import Classifier
from fededge.models.choices import unknown

__all__ = ["build", "check_name", "names"]

# 4 GB of float32: beyond any network here, and short of what would take a machine down.
MOST_PARAMETERS = 1_000_000_000


class Network(NamedTuple):
    """A body for images of a shape, the features that it gives, the smallest side it takes."""

    body: Callable[[tuple[int, int, int]], nn.Module]
    width: int
    smallest: int


ZOO = {
    "lenet": Network(lenet.lenet, lenet.WIDTH, lenet.SMALLEST),
    "mlpnet": Network(mlpnet.mlpnet, mlpnet.WIDTH, mlpnet.SMALLEST),
    "tfcnn": Network(tfcnn.tfcnn, tfcnn.WIDTH, tfcnn.SMALLEST),
}
HEADS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": nn.Linear,
    "bias-free": lambda width, classes: nn.Linear(width, classes, bias=False),
}


def names() -> tuple[str, ...]:
    """The networks that `build` knows."""
    return tuple(ZOO)


def check_name(name: str) -> None:
    """Refuse a network that does not exist."""
    if name not in ZOO:
        raise ConfigError(unknown("network", name, ZOO))


def build(
    name: str,
    classes: int,
    shape: tuple[int, int, int],
    seed: int,
    *,
    head: str = "linear",
) -> Classifier:
    """Make a network for images [C, H, W] of this shape.

    Args:
        name: one of `names()`.
        classes: how many logits the head gives.
        shape: channels, height and width of the images.
        seed: decides the initial weights; the state of torch's own generators stays as it is.
        head: "linear", or "bias-free" for methods that compare the rows of the last layer.
    """
    check_name(name)
    if head not in HEADS:
        raise ConfigError(unknown("head", head, HEADS))
    _check(name, classes, shape)
    with torch.device("meta"):
        _check_size(name, shape, _assemble(name, classes, shape, head))
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs too
        return _assemble(name, classes, shape, head)


def _assemble(name: str, classes: int, shape: tuple[int, int, int], head: str) -> Classifier:
    network = ZOO[name]
    return Classifier(network.body(shape), HEADS[head](network.width, classes))


def _check(name: str, classes: int, shape: tuple[int, int, int]) -> None:
    if classes < 2:
        raise ConfigError(f"{name} needs at least two classes, got {classes}")
    channels, height, width = shape
    smallest = ZOO[name].smallest
    if channels < 1 or min(height, width) < smallest:
        raise ConfigError(
            f"{name} takes images of at least {smallest}x{smallest} pixels, and these are "
            f"{height}x{width} with {channels} channels; choose another network or larger images"
        )


def _check_size(name: str, shape: tuple[int, int, int], network: nn.Module) -> None:
    size = sum(math.prod(p.shape) for p in network.parameters())
    if size > MOST_PARAMETERS:
        raise ConfigError(
            f"{name} would have {size:,} parameters for images of shape {shape}, more than "
            f"{MOST_PARAMETERS:,}; choose another network or smaller images"
        )
