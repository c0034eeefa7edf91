"""Images and layers that the tests of a fused convolution draw, and the layers in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from fededge.models.precision import channels_last

__all__ = ["LAYOUTS", "LENET", "PADDED", "SECOND", "SHAPES", "WIDE", "Shape", "layers"]


class Shape(NamedTuple):
    images: int
    channels: int
    outputs: int
    kernel: tuple[int, int]
    map: tuple[int, int]
    """Rows and columns of the convolution's result, before they are pooled."""
    padding: int

    def x(self, draw: torch.Generator) -> Tensor:
        sides = [m + k - 1 for m, k in zip(self.map, self.kernel, strict=True)]
        inner = [max(1, side - 2 * self.padding) for side in sides]
        return torch.randn(self.images, self.channels, *inner, generator=draw)

    def weight(self, draw: torch.Generator) -> Tensor:
        return torch.randn(self.outputs, self.channels, *self.kernel, generator=draw)


LENET = Shape(2, 1, 16, (5, 5), (24, 24), 0)
SECOND = Shape(3, 16, 16, (5, 5), (8, 8), 0)
WIDE = Shape(1, 2, 33, (1, 2), (2, 27), 0)
PADDED = Shape(2, 3, 7, (3, 3), (9, 5), 2)
SIDES = st.tuples(st.integers(1, 5), st.integers(1, 5))
SHAPES = st.builds(
    Shape,
    images=st.integers(0, 3),
    channels=st.integers(1, 18),
    outputs=st.integers(1, 35),
    kernel=SIDES,
    map=st.tuples(st.integers(2, 15), st.integers(2, 30)),
    padding=st.integers(0, 2),
)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels first": Tensor.contiguous,
    "channels last": channels_last,
    "rows apart": lambda x: channels_last(F.pad(x, (0, 3)))[..., : x.shape[3]],
    "columns first": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every other image": lambda x: x.repeat_interleave(2, 0)[::2],
    "the same for all": lambda x: x[:1].expand(len(x), -1, -1, -1),
}


def layers(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    return F.max_pool2d(F.conv2d(x, weight, bias, padding=padding), 2).relu()
