"""ResNet-18 of He et al. 2016, table 1, with its stem for photographs or one for small images.

Tensor names and initial weights are torchvision's: the weights are interchangeable.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fededge.models.base import he_initialised

__all__ = ["WIDTH", "resnet18", "resnet18_small"]

WIDTH = 512


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        stride = 1 if channels == width else 2
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride == 2:
            convolution = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        residual += x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(residual)
        return out


def resnet18(shape: tuple[int, int, int]) -> nn.Module:
    layers = _layers()
    if shape[0] != 3:
        layers["conv1"] = he_initialised(nn.Conv2d(shape[0], 64, 7, 2, padding=3, bias=False))
    return nn.Sequential(layers)


def resnet18_small(shape: tuple[int, int, int]) -> nn.Module:
    """Start with a 3x3 convolution of stride 1, without max-pooling: 32x32 would shrink to 1x1."""
    layers = _layers()
    layers["conv1"] = he_initialised(nn.Conv2d(shape[0], 64, 3, padding=1, bias=False))
    del layers["maxpool"]
    return nn.Sequential(layers)


def _layers() -> OrderedDict[str, nn.Module]:
    """Return the layers for photographs by name, up to the features."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, padding=1),
    )
    for stage, (channels, width) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
        layers[f"layer{stage}"] = nn.Sequential(
            BasicBlock(channels, width), BasicBlock(width, width)
        )
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    nn.Linear(WIDTH, 1)  # torchvision draws a head here: one seed gives the same weights in both
    for layer in layers.values():
        he_initialised(layer)
    layers["flatten"] = nn.Flatten()
    return layers
