"""ResNet-18 as torchvision makes it, with its stem for photographs or one for small images."""

from __future__ import annotations

from collections import OrderedDict
from importlib import import_module

from torch import nn

from fededge.errors import ConfigError
from fededge.models.base import he_initialised

__all__ = ["WIDTH", "resnet18", "resnet18_small"]

WIDTH = 512


def resnet18(shape: tuple[int, int, int]) -> nn.Module:
    layers = _layers()
    if shape[0] != 3:
        layers["conv1"] = he_initialised(nn.Conv2d(shape[0], 64, 7, 2, padding=3, bias=False))
    return nn.Sequential(layers)


def resnet18_small(shape: tuple[int, int, int]) -> nn.Module:
    """3x3 with stride 1 and no max-pooling at the start: 32x32 would shrink to 1x1 otherwise."""
    layers = _layers()
    layers["conv1"] = he_initialised(nn.Conv2d(shape[0], 64, 3, padding=1, bias=False))
    del layers["maxpool"]
    return nn.Sequential(layers)


def _layers() -> OrderedDict[str, nn.Module]:
    """The layers of torchvision's network by name, up to its features."""
    try:
        models = import_module("torchvision.models")
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"resnet18 takes torchvision, which cannot be imported ({error}); install "
            "fededge[vision] or choose another network"
        ) from error
    layers = OrderedDict(models.resnet18(weights=None, num_classes=1).named_children())
    del layers["fc"]
    layers["flatten"] = nn.Flatten()
    return layers
