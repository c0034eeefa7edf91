"""Limits on the memory that an announced job may take, checked before anything is allocated."""

from __future__ import annotations

import functools
import math
import os

from fededge import models
from fededge.config import AgentConfig
from fededge.errors import ConfigError, LayoutError
from fededge.flat import Layout
from fededge.model_spec import ModelSpec

__all__ = ["Limits"]

FLOAT, DOUBLE = 4, 8

MODELS = 5
"""Copies of the model during training: the network, its gradient, and at most three more."""

EXAMINED = 32
"""Numbers for each number of an input, at least, that the examination of a network may take."""

AT_ONCE = 256
"""Batch size of an evaluation."""


class Limits:
    """The configured limits; by default half of the machine's memory."""

    def __init__(self, config: AgentConfig) -> None:
        self.model = config.max_model_bytes
        self.memory = config.max_memory_bytes or _memory() // 2

    def check_network(self, spec: ModelSpec, layout: str) -> None:
        """Refuse a network that is too large, or whose layout is not the federation's."""
        if models.is_own(spec.name):  # a user's network is examined: it takes memory before that
            self._check_memory(FLOAT * EXAMINED * math.prod(spec.shape))
            models.check_parameters(spec, min(self.model, self.memory // MODELS) // FLOAT)
        found = _layout(spec)
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
        """Refuse a training whose activations do not fit into memory.

        Args:
            spec: the network and its inputs.
            batch: the batch size that the state announces.
            examples: the number of local examples; no batch is larger.
        """
        layers = models.activation_counts(spec)
        trained = layers.all * min(batch + 1, examples)
        evaluated = 2 * layers.largest * min(AT_ONCE, examples)
        fixed = _fixed(spec, FLOAT * _layout(spec).size)
        self._check_memory(fixed + FLOAT * max(trained, evaluated))

    def _check_memory(self, size: int) -> None:
        if size > self.memory:
            raise ConfigError(
                f"the federation's training would take some {size:,} bytes of memory, this device "
                f"allows {self.memory:,}: raise max_memory_bytes if it has them"
            )


@functools.lru_cache(maxsize=4)
def _layout(spec: ModelSpec) -> Layout:
    return Layout.of(models.meta_network(spec))


def _fixed(spec: ModelSpec, size: int) -> int:
    """Memory that does not depend on the batch: models, and a matrix of labels by labels."""
    return MODELS * size + DOUBLE * spec.classes**2


def _memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
