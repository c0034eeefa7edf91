"""How many numbers the layers of a network make of an input, found out on a small one."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from fededge.model_spec import ModelSpec
from fededge.models.zoo import build_for

__all__ = ["Numbers", "numbers_of"]

LARGEST_SIDE = 64


class Numbers(NamedTuple):
    """Of one input: the outputs of all layers together, and that of the largest one."""

    all: int
    largest: int


def numbers_of(spec: ModelSpec) -> Numbers:
    """What the network of a federation makes of one input, about.

    Exact for images of up to 64x64; larger ones are taken to have as many numbers for each pixel.
    Neither the labels nor the vocabulary count: they decide on the size of the network alone.
    (torch's meta device would tell it for any size, but loads its compiler: 150 MB, and seconds.)
    """
    small = _small(spec)
    network, found = build_for(small, seed=0), list[int]()

    def count(_: nn.Module, __: object, output: Tensor) -> None:
        found.append(output.numel())

    for part in network.modules():
        if not [*part.children()]:
            part.register_forward_hook(count)
    dtype = torch.int64 if spec.kind == "text" else torch.float32
    with torch.no_grad():
        network.eval()(torch.zeros((1, *small.shape), dtype=dtype))
    scale = math.prod(spec.shape) / math.prod(small.shape)
    return Numbers(math.ceil(sum(found) * scale), math.ceil(max(found) * scale))


def _small(spec: ModelSpec) -> ModelSpec:
    """The same kind of network for small inputs and two labels: it takes some megabytes."""
    labels = spec.labels[:2]
    if spec.kind == "text":
        return msgspec.structs.replace(spec, labels=labels, vocabulary=2)
    channels, height, width = spec.shape
    shape = (channels, min(height, LARGEST_SIDE), min(width, LARGEST_SIDE))
    return msgspec.structs.replace(spec, labels=labels, shape=shape)
