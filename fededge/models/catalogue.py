"""Names of the networks; importable without torch."""

from __future__ import annotations

from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError
from fededge.model_spec import Kind

__all__ = ["IMAGES", "TEXTS", "check_name", "names"]

IMAGES = (
    *("lenet", "lenet5", "lfd-cnn", "cnn4", "mlpnet", "tfcnn", "alexnet32"),
    *("vgg8", "vgg8-bn", "vgg11"),
    *("resnet8", "resnet20", "resnet32", "resnet56", "resnet18", "resnet18-small"),
)
TEXTS = ("fasttext",)


def names(kind: Kind = "image") -> tuple[str, ...]:
    """Return the networks that `build` knows for this kind of input."""
    return TEXTS if kind == "text" else IMAGES


def check_name(name: str) -> None:
    """Refuse a network that does not exist."""
    known = (*IMAGES, *TEXTS)
    if name not in known:
        raise ConfigError(unknown("network", name, known))
