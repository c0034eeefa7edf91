"""Federated methods, one file each; `method("fedprox(mu=0.1)")` makes one from its name."""

from __future__ import annotations

from fededge.methods.base import Hyper, Merged, Method, Round
from fededge.methods.compose import Stack
from fededge.methods.fedacd import FedACD
from fededge.methods.fedavg import FedAvg
from fededge.methods.fedprox import FedProx
from fededge.methods.grammar import parse
from fededge.methods.mixup import Mixup
from fededge.methods.private import Private

__all__ = ["METHODS", "Hyper", "Merged", "Method", "Private", "Round", "Stack", "method"]

METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (FedACD, FedAvg, FedProx, Mixup)}
"""Every method by its name. A program may add its own before it reads a configuration."""


def method(text: str) -> Stack:
    """The method, or composition of methods, that this text names."""
    return parse(text, METHODS)
