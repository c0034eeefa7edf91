"""AlexNet for 32x32 without batch norm and with dropout: a weak learner of FedBalance.

The paper gives no sizes. These are the channels of torchvision's AlexNet, with 3x3 kernels and a
stride of 2 at the start, as is usual at 32x32. The hidden layers have 1024 units instead of 4096,
as many as there are features at 32x32: every device stores one of these networks.
"""

from __future__ import annotations

from torch import nn

from fededge.models.base import he_initialised

__all__ = ["SMALLEST", "WIDTH", "alexnet32"]

SMALLEST = 15
WIDTH = 1024


def alexnet32(shape: tuple[int, int, int]) -> nn.Module:
    channels, height, width = shape
    rows, columns = ((side + 1) // 2 // 8 for side in (height, width))
    body = nn.Sequential(
        nn.Conv2d(channels, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 192, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(256 * rows * columns, WIDTH),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
    )
    return he_initialised(body)
