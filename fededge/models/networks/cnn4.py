"""The four-layer CNN of FedALA, a form of FedAvg's: two 5x5 convolutions, 512 units, the head.

FedAvg pads its convolutions; FedALA's code and PFLlib's, the references here, do not.
"""

from __future__ import annotations

from torch import nn

__all__ = ["SMALLEST", "WIDTH", "cnn4"]

SMALLEST = 16
WIDTH = 512


def cnn4(shape: tuple[int, int, int]) -> nn.Module:
    channels, height, width = shape
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, WIDTH),
        nn.ReLU(),
    )
