"""The networks that a device trains: the federation's, if its operator allows the file."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from fededge import models
from fededge.config import AgentConfig
from fededge.model_spec import ModelSpec

__all__ = ["allowed_network", "load_networks"]

log = logging.getLogger("agent")


def load_networks(config: AgentConfig) -> list[str]:
    """Import the files of networks that the operator allows; return the announced names."""
    names = []
    for reference in config.networks:
        names.append(models.load(reference))
        function, _, sha256 = names[-1].partition("@")
        log.info("network %s: %s, SHA-256 %s", function, reference, sha256)
    return names


def allowed_network(spec: ModelSpec, config: AgentConfig, allowed: Sequence[str]) -> ModelSpec:
    """Return the network that the device trains; refuse a file that is not allowed here.

    `[model]` of the device's configuration accepts one network only; a layout that differs from
    the federation's is refused later.
    """
    if config.model is not None:
        only = models.load(config.model.name)
        if models.is_reference(config.model.name):
            allowed = [only]
        else:
            spec = msgspec.structs.replace(spec, name=only)
    models.check_allowed(spec.name, allowed)
    return spec
