"""Names of the networks; importable without torch."""

from __future__ import annotations

from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError
from fededge.model_spec import Kind
from fededge.models.own_names import announced_name, check_installed, is_own, is_reference

__all__ = ["IMAGES", "TEXTS", "check_configured", "check_name", "names"]

IMAGES = (
    *("lenet", "lenet5", "lfd-cnn", "cnn4", "mlpnet", "tfcnn", "alexnet32"),
    *("vgg8", "vgg8-bn", "vgg11"),
    *("resnet8", "resnet20", "resnet32", "resnet56", "resnet18", "resnet18-small"),
)
TEXTS = ("fasttext",)


def names(kind: Kind = "image") -> tuple[str, ...]:
    """Return the networks that `build` knows for this kind of input."""
    return TEXTS if kind == "text" else IMAGES


def check_configured(name: str) -> None:
    """Refuse a configured network that does not exist; a user's file is read, not imported."""
    if is_reference(name):
        announced_name(name)
    else:
        check_name(name)


def check_name(name: str) -> None:
    """Refuse a name that no network has; a file is not one, see `own_names`."""
    known = (*IMAGES, *TEXTS)
    if is_own(name):
        check_installed(name)
    elif name not in known:
        raise ConfigError(unknown("network", name, known))
