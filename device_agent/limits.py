"""How much of a device a federation's state may claim: found out before anything is allocated."""

from __future__ import annotations

import os

from fededge import models
from fededge.config import AgentConfig
from fededge.errors import ConfigError, LayoutError
from fededge.flat import Layout
from fededge.model_spec import ModelSpec

__all__ = ["Limits"]

FLOAT, DOUBLE = 4, 8

MODELS = 5
"""Models that a training holds: the network, its gradient, and at most three beside it."""

AT_ONCE = 256
"""Inputs that an evaluation takes at a time, layer after layer."""


class Limits:
    """What the configuration allows; half of the machine's memory unless it says otherwise."""

    def __init__(self, config: AgentConfig) -> None:
        self.model = config.max_model_bytes
        self.memory = config.max_memory_bytes or _memory() // 2

    def check_network(self, spec: ModelSpec, layout: str) -> None:
        """Refuse a network that is too large, or has another layout than the federation's."""
        found = Layout.of(models.meta_network(spec))
        size = FLOAT * found.size
        if size > self.model:
            raise ConfigError(
                f"{spec.name} would take {size:,} bytes, this device allows {self.model:,}: "
                "raise max_model_bytes if that is right"
            )
        self._check_memory(_fixed(spec, size))
        if found.hash != layout:
            raise LayoutError(
                f"network {spec.name} has layout {found.hash} here, the federation's is {layout}: "
                "another network, or another version of FedEdge"
            )

    def check_training(self, spec: ModelSpec, batch: int, examples: int) -> None:
        """Refuse inputs so large, or so many at a time, that no memory holds what becomes of them.

        Args:
            spec: of the network and its inputs.
            batch: how many of them the state trains on at a time.
            examples: how many there are; no batch has more.
        """
        layers = models.activation_counts(spec)
        trained = layers.all * min(batch + 1, examples)
        evaluated = 2 * layers.largest * min(AT_ONCE, examples)
        fixed = _fixed(spec, FLOAT * Layout.of(models.meta_network(spec)).size)
        self._check_memory(fixed + FLOAT * max(trained, evaluated))

    def _check_memory(self, size: int) -> None:
        if size > self.memory:
            raise ConfigError(
                f"the federation's training would take some {size:,} bytes of memory, this device "
                f"allows {self.memory:,}: raise max_memory_bytes if it has them"
            )


def _fixed(spec: ModelSpec, size: int) -> int:
    """Memory whatever the batch: models of so many bytes, and a number for each pair of labels."""
    return MODELS * size + DOUBLE * spec.classes**2


def _memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
