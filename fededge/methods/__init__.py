"""Federated methods, one file each; `method("fedprox(mu=0.1)")` makes one from its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fededge.errors import MethodError
from fededge.method.base import Hyper, Merged, Method, Range, Round
from fededge.method.grammar import parse
from fededge.method.plugins import located, references, resolved, sha256_of
from fededge.method.private import Private
from fededge.method.stack import Stack
from fededge.methods.ala import Ala, FedALA
from fededge.methods.balanced import Balanced
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
from fededge.methods.lfd import LfD
from fededge.methods.map import Map
from fededge.methods.mixup import Mixup
from fededge.methods.moon import Moon
from fededge.methods.scaffold import Scaffold

__all__ = [
    "METHODS",
    "Hyper",
    "Merged",
    "Method",
    "Private",
    "Range",
    "Round",
    "Stack",
    "announced",
    "located",
    "method",
    "own_method",
    "references",
]

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
    """The method, or composition of methods, that a text of this machine's own user names.

    It may name files, `path/to/file.py:Name`, which are imported: `announced` is for texts from
    elsewhere.
    """
    plain, found = resolved(text, METHODS)
    return parse(plain, {**METHODS, **found})


def own_method(reference: str) -> type[Method]:
    """The method of the file that `path/to/file.py:Name` names, and nothing beside it."""
    plain, found = resolved(reference, METHODS)
    if [plain.strip()] != list(found):
        raise MethodError(
            f"'{reference}' is not of the form path/to/file.py:Name; FedEdge's own methods need no "
            "entry, and options come from the coordinator"
        )
    return found[plain.strip()]


def announced(text: str, files: Mapping[str, str], own: Iterable[type[Method]]) -> Stack:
    """The method that a federation announces, made of what this device has.

    Args:
        text: names and options; it never leads to a file.
        files: the SHA-256 of the file that the coordinator has for a name that is not FedEdge's.
        own: the methods from files that this device's operator allows.
    """
    given = [*own]
    known = {name: _same(name, sha256, given) for name, sha256 in files.items()}
    return parse(text, {**METHODS, **known})


def _same(name: str, sha256: str, own: Iterable[type[Method]]) -> type[Method]:
    ours = {sha256_of(kind): kind for kind in own if kind.name == name}
    if sha256 in ours:
        return ours[sha256]
    if not ours:
        raise MethodError(
            f"the federation's method '{name}' is a file of its own (SHA-256 {sha256}) that this "
            'device does not have: allow it with methods = ["path/to/file.py:Name"] in the '
            "agent's configuration, or with --method"
        )
    raise MethodError(
        f"the federation's method '{name}' is a file with SHA-256 {sha256}, but this device's has "
        f"{', '.join(ours)}: give both the same file"
    )
