"""ResNet-8, -20, -32 and -56 of He et al. 2016, sec. 4.2: three stages of 16, 32 and 64 channels.

Where a stage changes the size, the shortcut is a 1x1 convolution (their option B; A pads with
zeros), as in MAP's code and in FedBalance, whose table 3 gives ResNet-8 the 12.75 million
multiplications of B (A: 12.46). It adds 2,752 parameters to the published sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from fededge.models.base import he_initialised

__all__ = ["RESNETS", "WIDTH"]

WIDTH = 64


class CifarBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        stride = 1 if channels == width else 2
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            convolution = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(width))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out


def resnet(shape: tuple[int, int, int], blocks: int) -> nn.Module:
    """Build the body of a ResNet of 6n + 2 layers: three stages of n blocks, input and head."""
    layers = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for width in (16, 32, 64):
        layers += [
            CifarBlock(channels, width),
            *(CifarBlock(width, width) for _ in range(blocks - 1)),
        ]
        channels = width
    return he_initialised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()))


RESNETS: dict[str, Callable[[tuple[int, int, int]], nn.Module]] = {
    f"resnet{6 * blocks + 2}": partial(resnet, blocks=blocks) for blocks in (1, 3, 5, 9)
}
