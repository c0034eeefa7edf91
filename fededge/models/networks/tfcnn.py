"""TFCNN, the CNN of the TensorFlow tutorial for CIFAR: three 3x3 convolutions, 64 units."""

from __future__ import annotations

from torch import nn

__all__ = ["SMALLEST", "WIDTH", "tfcnn"]

SMALLEST = 18
WIDTH = 64


def tfcnn(shape: tuple[int, int, int]) -> nn.Module:
    channels, height, width = shape
    rows, columns = (((side - 2) // 2 - 2) // 2 - 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, WIDTH),
        nn.ReLU(),
    )
