"""Federated methods, one file each; `method("fedprox(mu=0.1)")` makes one from its name."""

from __future__ import annotations

from fededge.methods.ala import Ala, FedALA
from fededge.methods.balanced import Balanced
from fededge.methods.base import Hyper, Merged, Method, Round
from fededge.methods.compose import Stack
from fededge.methods.ditto import Ditto
from fededge.methods.fedacd import FedACD
from fededge.methods.fedavg import FedAvg
from fededge.methods.fedavgm import FedAvgM
from fededge.methods.fedbalance import FedBalance
from fededge.methods.fedlc import FedLC
from fededge.methods.fednova import FedNova
from fededge.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fededge.methods.fedphp import FedPHP
from fededge.methods.fedprox import FedProx
from fededge.methods.fedrod import FedROD
from fededge.methods.fedrs import FedRS
from fededge.methods.finetune import FedAvgC, FedProxC, Finetune
from fededge.methods.grammar import parse
from fededge.methods.lfd import LfD
from fededge.methods.map import Map
from fededge.methods.mixup import Mixup
from fededge.methods.moon import Moon
from fededge.methods.private import Private
from fededge.methods.scaffold import Scaffold

__all__ = ["METHODS", "Hyper", "Merged", "Method", "Private", "Round", "Stack", "method"]

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        FedACD,
        FedAvg,
        FedProx,
        Mixup,
        Ditto,
        FedPHP,
        FedRS,
        Map,
        Scaffold,
        FedAvgM,
        FedNova,
        FedAdagrad,
        FedAdam,
        FedYogi,
        LfD,
        Moon,
        Ala,
        FedALA,
        Finetune,
        FedAvgC,
        FedProxC,
        FedBalance,
        Balanced,
        FedROD,
        FedLC,
    )
}
"""Every method by its name. A program may add its own before it reads a configuration."""


def method(text: str) -> Stack:
    """The method, or composition of methods, that this text names."""
    return parse(text, METHODS)
