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

# Each part, then the parts that it may import, which stand above it: imports point one way.
# Names are those within `fededge`. The package itself (its version, its names) is open to all.
TABLE = """
_C:
_cuda:
_internal.plain_text:
_sums:
errors: _internal.plain_text
model_spec: _internal.plain_text
_internal: _internal.plain_text errors
hardware: errors _internal
inputs: errors
flat: errors _internal
ops: _C _cuda errors _internal
models: errors model_spec _internal hardware flat ops
wire: _internal.plain_text errors model_spec flat
method: _internal.plain_text errors _internal hardware flat ops models
storage: errors wire
broker: errors _internal wire storage
credentials: errors storage
enrolment: errors wire storage broker credentials
federated: _internal.plain_text _sums errors model_spec _internal flat wire method storage
predictor: errors _internal inputs storage
training: errors _internal hardware flat ops models method
fededge_agent.store: errors _internal flat wire storage
export: errors model_spec _internal flat models storage predictor
methods: errors _internal flat ops models method training
config: errors _internal hardware models wire storage credentials federated methods
data: _internal.plain_text errors model_spec _internal inputs storage training config
transport: errors credentials config
service: _internal.plain_text errors _internal wire config transport
simulation: errors model_spec _internal hardware flat models wire method storage federated
    training methods config data
fededge_agent.machine: errors wire service
fededge_server.machine: errors hardware wire federated config service
fededge_agent: _internal.plain_text errors _internal hardware flat wire storage credentials
    federated fededge_agent.store export config data transport service fededge_agent.machine
fededge_agent.trainer: errors model_spec _internal hardware flat models wire method storage
    training fededge_agent.store export methods config data fededge_agent
fededge_agent.exporter: errors _internal hardware credentials fededge_agent.store export config
    fededge_agent
fededge_server.store: errors _internal flat wire storage fededge_server.machine
doctor: _internal.plain_text errors wire storage broker credentials fededge_agent.store config data
    transport fededge_server.store
fededge_server: _internal.plain_text errors model_spec _internal hardware flat models wire method
    storage broker credentials federated training methods config data transport service
    fededge_server.machine fededge_server.store
cli: _internal.plain_text errors _internal hardware inputs flat ops models wire storage broker
    credentials enrolment federated predictor training export methods config data transport service
    simulation fededge_agent.store fededge_agent fededge_server.machine fededge_server.store doctor
    fededge_server
__main__: cli
"""


def _absolute(name: str) -> str:
    return name if name.startswith("fededge_") else f"fededge.{name}"


def _parts(table: str) -> dict[str, tuple[str, ...]]:
    """The rows of the table; a row may go on in indented lines."""
    rows = table.strip().replace("\n    ", " ").splitlines()
    cells = (row.split(":") for row in rows)
    return {_absolute(name): (*map(_absolute, allowed.split()),) for name, allowed in cells}


PARTS = _parts(TABLE)

# Packages that only these parts may import.
ONLY: dict[str, tuple[str, ...]] = {
    "aiohttp": ("fededge_server.api.http_app",),
    "amqtt": ("fededge.broker",),
    "cryptography": (
        "fededge.credentials",
        "fededge.enrolment",
        "fededge.predictor",
        "fededge.wire",
    ),
    "fededge._C": ("fededge.ops",),
    "fededge._cuda": ("fededge.ops",),
    "fededge._sums": ("fededge.federated.sums",),
    "fededge_agent": ("fededge_agent", "fededge.cli", "fededge.doctor"),
    "fededge_server": ("fededge_server", "fededge.cli", "fededge.doctor"),
    "onnx": ("fededge.export",),
    "onnxruntime": ("fededge.export", "fededge.predictor"),
    "onnxscript": ("fededge.export",),
    "paho": ("fededge.transport",),
    "sqlite3": ("fededge_server.store",),
    "matplotlib": ("fededge.data.figures",),
    "torchvision": ("fededge.data", "fededge.models"),
    "zstandard": ("fededge.wire",),
}

# Imports that are lazy (inside functions): heavy, optional, or circular at import time.
LAZY: dict[str, tuple[str, ...]] = {
    "fededge_server.api.http_app": ("fededge_server",),
    "PIL": ("fededge",),
    "cryptography": ("fededge.predictor",),
    "fededge.credentials.signing_keys": ("fededge_agent.trust",),
    "fededge_agent": ("fededge.cli", "fededge.doctor"),
    "fededge_server": ("fededge.cli", "fededge.doctor"),
    "onnxruntime": ("fededge.predictor",),
    "torchvision": ("fededge",),
}

# Packages that a part must never import.
NEVER: dict[str, tuple[str, ...]] = {
    # An app has ONNX Runtime and numpy, and need not have more.
    "fededge.predictor": (
        "msgspec",
        "rich",
        "torch",
    ),
    "fededge.wire": (
        *("asyncio", "http", "os", "paho", "pathlib", "shutil", "socket", "socketserver", "ssl"),
        *("torch", "urllib"),
    ),
    # The state machines do no I/O.
    "fededge_agent.machine": ("os", "paho", "pathlib", "queue", "sqlite3", "threading", "time"),
    "fededge_server.machine": ("os", "paho", "pathlib", "queue", "sqlite3", "threading", "time"),
    # torch is in another process of the coordinator's, if at all: see _internal/lazy_torch.py.
    "fededge_server": ("torch",),
    # torch is in the trainer process, which is started by name.
    "fededge_agent": ("fededge_agent.trainer", "torch"),
}

# Parts of those that may: they run in the trainer process.
EXEMPT = ("fededge_agent.trainer",)

# Packages that no part may import: bytes from outside must never run code.
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
    return max((part for part in PARTS if inside(name, (part,))), key=len, default=None)


def ours(name: str) -> bool:
    return inside(name, tuple(FOLDERS))


def not_in_the_table(found: Found) -> bool:
    """Lazy imports count too: they point the same way."""
    source, target = part_of(found.module), part_of(found.target)
    if not ours(found.target) or source is None or target in (None, source):
        return False
    return target not in PARTS[source]


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
        if not inside(found.module, EXEMPT)
    )


def test_every_module_has_its_place_in_the_table() -> None:
    names = {name for name, _ in modules(FOLDERS)}
    assert [name for name in names if part_of(name) is None] == ["fededge"]


def test_a_part_imports_only_parts_that_stand_above_it_in_the_table() -> None:
    order = [*PARTS]
    wrong = [
        (part, other)
        for part, allowed in PARTS.items()
        for other in allowed
        if order.index(other) >= order.index(part)
    ]
    assert wrong == []


def test_the_table_allows_nothing_that_nobody_needs() -> None:
    used = {(part_of(found.module), part_of(found.target)) for found in everything()}
    allowed = {(part, other) for part, others in PARTS.items() for other in others}
    assert allowed - used == set()


@pytest.mark.parametrize("rule", [not_in_the_table, not_allowed, too_early, forbidden])
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    assert [str(found) for found in everything() if rule(found)] == []


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (not_in_the_table, "fededge.wire.topics", "from fededge import transport"),
        (not_in_the_table, "fededge.ops", "from fededge.training import train"),
        (not_in_the_table, "fededge.methods.fedavg", "import fededge_server"),
        (not_in_the_table, "fededge.training", "def f():\n    from .cli import main"),
        (not_in_the_table, "fededge.config", "def f():\n    from fededge.transport import session"),
        (not_allowed, "fededge_agent.shell", "from fededge_server.store import Store"),
        (not_allowed, "fededge_server.shell", "import fededge_agent"),
        (
            not_allowed,
            "fededge.simulation.run",
            "def f():\n    import fededge_server.machine.rounds.rounds",
        ),
        (not_allowed, "fededge_server.shell", "import paho.mqtt.client as mqtt"),
        (not_allowed, "fededge.training", "from fededge import _C"),
        (not_allowed, "fededge.data.folder", "import sqlite3"),
        (not_allowed, "fededge_agent.trainer.turns", "async def f():\n    import onnxruntime"),
        (too_early, "fededge.cli.operation.agent", "from fededge_agent.agent import Agent"),
        (too_early, "fededge.data.formats.images", "class A:\n    import torchvision.io"),
        (too_early, "fededge.predictor.images", "import PIL.Image"),
        (forbidden, "fededge.predictor.model", "def f():\n    import torch"),
        (forbidden, "fededge.wire.chunks", "import socket"),
        (forbidden, "fededge_server.model.merging", "from torch import Tensor"),
        (forbidden, "fededge_agent.worker", "def f():\n    import torch"),
        (forbidden, "fededge_agent.agent", "from fededge_agent.trainer.turns import DeviceTurns"),
        (forbidden, "fededge_server.machine.rounds.rounds", "def f():\n    import time"),
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
