"""LeNet, for (Fashion-)MNIST in MAP: two 5x5 convolutions, then 120 and 84 units."""

from __future__ import annotations

from torch import nn

__all__ = ["SMALLEST", "WIDTH", "lenet"]

SMALLEST = 16
WIDTH = 84


def lenet(shape: tuple[int, int, int]) -> nn.Module:
    channels, height, width = shape
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * rows * columns, 120),
        nn.ReLU(),
        nn.Linear(120, WIDTH),
        nn.ReLU(),
    )
