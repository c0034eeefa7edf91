"""The activations and the arithmetic of a network, measured with a small input."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from fededge.model_spec import ModelSpec
from fededge.models.own_names import is_own
from fededge.models.zoo import build_for

__all__ = ["ActivationCounts", "activation_counts"]

LARGEST_SIDE = 64


class ActivationCounts(NamedTuple):
    """Activations for one input: of all layers together, and of the largest layer.

    `macs` are the multiply-accumulates of its forward pass.
    """

    all: int
    largest: int
    macs: int


@functools.lru_cache(maxsize=4)
def activation_counts(spec: ModelSpec) -> ActivationCounts:
    """Estimate the activations of a federation's network for one input.

    Exact for images of up to 64x64; larger ones are assumed to have as many activations per pixel.
    Labels and vocabulary only change the parameters. A user's network is measured as it is, for it
    may take no other shape. (torch's meta device would give the count for
    any size, but it loads torch's compiler: 150 MB, and seconds.)
    """
    small = spec if is_own(spec.name) else _small(spec)
    network, found, macs = build_for(small, seed=None), list[int](), list[int]()

    def count(part: nn.Module, _: object, output: object) -> None:
        if not isinstance(output, Tensor):  # such as the state of a recurrent layer
            return
        found.append(output.numel())
        if isinstance(part, nn.Conv2d | nn.Linear):  # a weight's row makes one number
            macs.append(output.numel() * part.weight[0].numel())

    for part in network.modules():
        if not [*part.children()]:
            part.register_forward_hook(count)
    dtype = torch.int64 if spec.kind == "text" else torch.float32
    with torch.no_grad():
        network.eval()(torch.zeros((1, *small.shape), dtype=dtype))
    scale = math.prod(spec.shape) / math.prod(small.shape)
    sums = (sum(found), max(found, default=0), sum(macs))
    return ActivationCounts(*(math.ceil(number * scale) for number in sums))


def _small(spec: ModelSpec) -> ModelSpec:
    """Return the spec with small inputs and two labels: its network takes some megabytes."""
    labels = spec.labels[:2]
    if spec.kind == "text":
        return msgspec.structs.replace(spec, labels=labels, vocabulary=2)
    channels, height, width = spec.shape
    shape = (channels, min(height, LARGEST_SIDE), min(width, LARGEST_SIDE))
    return msgspec.structs.replace(spec, labels=labels, shape=shape)
