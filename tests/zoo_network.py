"""A network of the zoo as a `Classifier`: `build` may also give a network of a user."""

from __future__ import annotations

from typing import Any

from fededge.models import build
from fededge.models.base import Classifier

__all__ = ["zoo_network"]


def zoo_network(
    name: str, classes: int, shape: tuple[int, ...], seed: int | None, **more: Any
) -> Classifier:
    network = build(name, classes, shape, seed, **more)
    assert isinstance(network, Classifier)
    return network
