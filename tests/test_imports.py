"""Imports point one way only: the table of who may import what, checked on the source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"fededge": "fededge", "fededge_server": "server", "fededge_agent": "device_agent"}

# Lowest first. A part imports its own layer and those below, never one above.
LAYERS: dict[str, tuple[str, ...]] = {
    "low": (
        "fededge",
        "fededge._C",
        "fededge._cuda",
        "fededge._sums",
        "fededge.bounds",
        "fededge.choices",
        "fededge.compiled",
        "fededge.errors",
        "fededge.figures",
        "fededge.files",
        "fededge.flat",
        "fededge.late",
        "fededge.logs",
        "fededge.memory",
        "fededge.ops",
        "fededge.pictures",
        "fededge.plain",
        "fededge.predictor",
        "fededge.processes",
        "fededge.rollout",
        "fededge.scaling",
        "fededge.sealed",
        "fededge.selection",
        "fededge.spec",
        "fededge.sums",
        "fededge.text",
        "fededge.wire",
    ),
    "mid": (
        "fededge.aggregation",
        "fededge.config",
        "fededge.data",
        "fededge.evaluation",
        "fededge.export",
        "fededge.methods",
        "fededge.models",
        "fededge.robust",
        "fededge.training",
        "fededge.transport",
    ),
    "high": ("fededge.simulation", "fededge_agent", "fededge_server"),
    "top": ("fededge.__main__", "fededge.cli"),
}

# Who may import a package: nobody else does.
ONLY: dict[str, tuple[str, ...]] = {
    "amqtt": ("fededge.transport",),
    "cryptography": ("fededge.predictor", "fededge.transport", "fededge.wire"),
    "fededge._C": ("fededge.ops",),
    "fededge._cuda": ("fededge.ops",),
    "fededge._sums": ("fededge.sums",),
    "fededge_agent": ("fededge_agent", "fededge.cli"),
    "fededge_server": ("fededge_server", "fededge.cli"),
    "onnx": ("fededge.export",),
    "onnxruntime": ("fededge.export", "fededge.predictor"),
    "onnxscript": ("fededge.export",),
    "paho": ("fededge.transport",),
    "sqlite3": ("fededge_server", "fededge_agent"),
    "matplotlib": ("fededge.figures",),
    "torchvision": ("fededge.data",),
    "zstandard": ("fededge.wire",),
}

# Who imports what inside functions only: heavy, optional, or not to be known at import time.
LAZY: dict[str, tuple[str, ...]] = {
    "PIL": ("fededge",),
    "cryptography": ("fededge.predictor",),
    "fededge_agent": ("fededge.cli",),
    "fededge_server": ("fededge.cli",),
    "onnxruntime": ("fededge.predictor",),
    "torchvision": ("fededge",),
}

# What a part never imports.
NEVER: dict[str, tuple[str, ...]] = {
    # An app has ONNX Runtime and numpy, and need not have more.
    "fededge.predictor": (
        "fededge.flat",
        "fededge.ops",
        "fededge.wire",
        "msgspec",
        "rich",
        "torch",
    ),
    "fededge.wire": (
        *("asyncio", "http", "paho", "socket", "socketserver", "ssl", "torch", "urllib"),
    ),
    # torch is in another process of the coordinator's, if at all: see fededge/late.py.
    "fededge_server": ("torch",),
}

# What nobody imports: bytes from outside must never be able to run code.
BANNED = ("cPickle", "dill", "joblib", "marshal", "pickle", "shelve")


class Found(NamedTuple):
    """One import: of what, by which module, on which line, and whether inside a function."""

    target: str
    module: str
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: imports {self.target}"


Rule = Callable[[Found], bool]


def modules(folders: dict[str, str]) -> Iterator[tuple[str, Path]]:
    for package, folder in folders.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            names = parts[:-1] if parts[-1] == "__init__" else parts
            yield ".".join((package, *names)), path


def inside(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def imports_of(module: str, source: str, is_package: bool = False) -> Iterator[Found]:
    """Every import of a module, by absolute name; `from a import b` is an import of `a.b`."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, lazy = pending.pop()
        if isinstance(node, ast.Import):
            yield from (Found(alias.name, module, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node, is_package)
            yield from (
                Found(f"{base}.{alias.name}", module, node.lineno, lazy) for alias in node.names
            )
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending += [(child, lazy) for child in ast.iter_child_nodes(node)]


def absolute(module: str, node: ast.ImportFrom, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    keep = len(parts) - node.level + is_package
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


@cache
def everything() -> tuple[Found, ...]:
    return tuple(
        found
        for module, path in modules(FOLDERS)
        for found in imports_of(module, path.read_text(), path.name == "__init__.py")
    )


def part_of(name: str) -> str | None:
    """The part of the table that a module belongs to: the longest name that fits."""
    fits = [part for parts in LAYERS.values() for part in parts if inside(name, (part,))]
    return max(fits, key=len, default=None)


def layer_of(name: str) -> int:
    part = part_of(name)
    return next(i for i, parts in enumerate(LAYERS.values()) if part in parts)


def ours(name: str) -> bool:
    return inside(name, tuple(FOLDERS))


def wrong_layer(found: Found) -> bool:
    return ours(found.target) and layer_of(found.target) > layer_of(found.module)


def not_allowed(found: Found) -> bool:
    return any(
        inside(found.target, (package,)) and not inside(found.module, allowed)
        for package, allowed in ONLY.items()
    )


def too_early(found: Found) -> bool:
    return not found.lazy and any(
        inside(found.target, (package,)) and inside(found.module, parts)
        for package, parts in LAZY.items()
    )


def forbidden(found: Found) -> bool:
    return inside(found.target, BANNED) or any(
        inside(found.module, (part,)) and inside(found.target, targets)
        for part, targets in NEVER.items()
    )


def test_every_module_has_its_place_in_the_table() -> None:
    """`fededge` itself is only its `__init__`: a new part must be listed by name."""
    homeless = [
        name
        for name, _ in modules(FOLDERS)
        if part_of(name) is None or (part_of(name) == "fededge" and name != "fededge")
    ]
    assert homeless == []


@pytest.mark.parametrize("rule", [wrong_layer, not_allowed, too_early, forbidden])
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    assert [str(found) for found in everything() if rule(found)] == []


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (wrong_layer, "fededge.wire.topics", "from fededge import transport"),
        (wrong_layer, "fededge.ops", "from fededge.training import train"),
        (wrong_layer, "fededge.methods.fedavg", "import fededge_server"),
        (wrong_layer, "fededge.training", "def f():\n    from .cli import main"),
        (not_allowed, "fededge_agent.app", "from fededge_server.store import Store"),
        (not_allowed, "fededge_server.app", "import fededge_agent"),
        (not_allowed, "fededge.simulation.run", "def f():\n    import fededge_server.rounds"),
        (not_allowed, "fededge_server.app", "import paho.mqtt.client as mqtt"),
        (not_allowed, "fededge.training", "from fededge import _C"),
        (not_allowed, "fededge.data.folder", "import sqlite3"),
        (not_allowed, "fededge_agent.work", "async def f():\n    import onnxruntime"),
        (too_early, "fededge.cli.agent", "from fededge_agent.app import Agent"),
        (too_early, "fededge.data.images", "class A:\n    import torchvision.io"),
        (too_early, "fededge.predictor.inputs", "import PIL.Image"),
        (forbidden, "fededge.predictor.model", "def f():\n    import torch"),
        (forbidden, "fededge.wire.chunks", "import socket"),
        (forbidden, "fededge_server.merging", "from torch import Tensor"),
        (forbidden, "fededge.training", "from pickle import loads"),
    ],
)
def test_the_rule_would_notice(rule: Rule, module: str, source: str) -> None:
    assert any(rule(found) for found in imports_of(module, source))


def test_relative_imports_are_seen_by_their_absolute_name() -> None:
    one = next(imports_of("fededge.wire.topics", "from ..cli import main"))
    two = next(imports_of("fededge.wire", "from . import topics", is_package=True))
    three = next(imports_of("fededge.wire.chunks", "def f():\n    from .topics import state"))
    assert [one.target, two.target] == ["fededge.cli.main", "fededge.wire.topics"]
    assert (three.target, three.lazy) == ("fededge.wire.topics.state", True)
