"""Federated methods, one file each; `method("fedprox(mu=0.1)")` makes one from text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fededge.errors import MethodError
from fededge.method.base import Hyper, Merged, Method, Range, TurnView
from fededge.method.grammar import parse
from fededge.method.plugins import absolute_paths, load_references, references, sha256_of
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
    "Stack",
    "TurnView",
    "absolute_paths",
    "announced",
    "method",
    "plugin_method",
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
"""Every method by name. A program may add its own before it reads a configuration."""


def method(text: str) -> Stack:
    """Make the method, or composition, that this machine's own user names.

    The text may name plugins, `path/to/file.py:Name`, which are imported. For text from elsewhere
    use `announced`.
    """
    plain, found = load_references(text, METHODS)
    return parse(plain, {**METHODS, **found})


def plugin_method(reference: str) -> type[Method]:
    """Load the plugin `path/to/file.py:Name`; refuse any other text."""
    plain, found = load_references(reference, METHODS)
    if [plain.strip()] != list(found):
        raise MethodError(
            f"'{reference}' is not of the form path/to/file.py:Name; FedEdge's own methods need no "
            "entry, and options come from the coordinator"
        )
    return found[plain.strip()]


def announced(text: str, files: Mapping[str, str], plugins: Iterable[type[Method]]) -> Stack:
    """Make the method that a federation announces, from FedEdge's methods and allowed plugins.

    Args:
        text: names and options; paths in it are never imported.
        files: the SHA-256 of the coordinator's file for each plugin's name.
        plugins: those that this device's operator allows.
    """
    allowed = [*plugins]
    known = {name: _find_allowed(name, sha256, allowed) for name, sha256 in files.items()}
    return parse(text, {**METHODS, **known})


def _find_allowed(name: str, sha256: str, plugins: Iterable[type[Method]]) -> type[Method]:
    ours = {sha256_of(kind): kind for kind in plugins if kind.name == name}
    if sha256 in ours:
        return ours[sha256]
    if not ours:
        raise MethodError(
            f"the federation's method '{name}' is a plugin (SHA-256 {sha256}) that this device "
            'does not have: allow it with methods = ["path/to/file.py:Name"] in the agent\'s '
            "configuration, or with --method"
        )
    raise MethodError(
        f"the federation's method '{name}' is a plugin with SHA-256 {sha256}, but this device's "
        f"has {', '.join(ours)}: use the same file on both"
    )
