"""LeNet: two 5x5 convolutions, then 120 and 84 units; in two widths, and with a projection.

MAP's code for (Fashion-)MNIST gives both convolutions 16 channels (`lenet`). The original has 6
and 16 (`lenet5`); its 0.66 million multiplications at 32x32 are the cost that FedBalance's table 3
adds to ResNet-8 for the weak learner. LfD and MOON add a projection of two layers (`lfd-cnn`),
whose 256 outputs, without a ReLU, are the features.
"""

from __future__ import annotations

from torch import nn

__all__ = ["PROJECTED", "SMALLEST", "WIDTH", "lenet", "lenet5", "lfd_cnn"]

SMALLEST = 16
WIDTH = 84
PROJECTED = 256


def lenet(shape: tuple[int, int, int]) -> nn.Module:
    return _lenet(shape, 16)


def lenet5(shape: tuple[int, int, int]) -> nn.Module:
    return _lenet(shape, 6)


def lfd_cnn(shape: tuple[int, int, int]) -> nn.Module:
    projection = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, PROJECTED)
    return nn.Sequential(*_lenet(shape, 6), *projection)


def _lenet(shape: tuple[int, int, int], first: int) -> nn.Sequential:
    channels, height, width = shape
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * rows * columns, 120),
        nn.ReLU(),
        nn.Linear(120, WIDTH),
        nn.ReLU(),
    )
