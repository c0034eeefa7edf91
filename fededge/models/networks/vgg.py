"""VGG8, VGG8-BN and VGG11 for 32x32, as in MAP's code: convolutions followed directly by the head.

The names count two hidden layers of 512 units that MAP's federated networks leave out. Pooling
rounds up and ends in a mean: any image size works, and 32x32 gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import nn

from fededge.models.base import he_initialised

__all__ = ["VGGS", "WIDTH"]

WIDTH = 512

# The channels of the convolutions; each group ends in pooling.
PLANS = {
    "vgg8": ((64,), (128,), (256,), (512,), (512,)),
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
}
Groups = tuple[tuple[int, ...], ...]


def vgg(shape: tuple[int, int, int], groups: Groups, batch_norm: bool) -> nn.Module:
    layers = _layers(shape[0], groups, batch_norm)
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return he_initialised(body)  # without it, signals vanish in nine layers


def _layers(channels: int, groups: Groups, batch_norm: bool) -> Iterator[nn.Module]:
    for group in groups:
        for width in group:
            yield nn.Conv2d(channels, width, 3, padding=1)
            if batch_norm:
                yield nn.BatchNorm2d(width)
            yield nn.ReLU()
            channels = width
        yield nn.MaxPool2d(2, ceil_mode=True)


VGGS: dict[str, Callable[[tuple[int, int, int]], nn.Module]] = {
    "vgg8": partial(vgg, groups=PLANS["vgg8"], batch_norm=False),
    "vgg8-bn": partial(vgg, groups=PLANS["vgg8"], batch_norm=True),
    "vgg11": partial(vgg, groups=PLANS["vgg11"], batch_norm=False),
}
