"""MLPNet, for (Fashion-)MNIST in MAP: hidden layers of 1024, 1024 and 128 units."""

from __future__ import annotations

import math

from torch import nn

__all__ = ["SMALLEST", "WIDTH", "mlpnet"]

SMALLEST = 1
WIDTH = 128


def mlpnet(shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, WIDTH),
        nn.ReLU(),
    )
