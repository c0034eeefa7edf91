"""Names of networks that are not of the zoo: in a user's own file, or of torchvision.

A configuration names a user's network as `path/to/net.py:make`. It is announced as
`make@SHA-256`, without a path, and `build` takes the announced name alone: text from the network
never causes an import of a file. Importable without torch; `load` imports the file, which may need
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fededge._internal.own_files import file_sha256, import_file, sha256_in
from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError

__all__ = [
    "OwnNetwork",
    "absolute_reference",
    "announced_name",
    "check_allowed",
    "check_installed",
    "check_reference",
    "in_zoo",
    "is_own",
    "is_reference",
    "load",
    "loaded",
]

REFERENCE = re.compile(r"\s*(.*?\.py)\s*(?::\s*([^:]*?)\s*)?", re.DOTALL)
ANNOUNCED = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,99})@([0-9a-f]{64})")
TORCHVISION = re.compile(r"torchvision:([a-z0-9_]{1,64})")


class OwnNetwork(NamedTuple):
    """A callable that makes networks, and how errors call it: the file's name without a folder."""

    title: str
    make: Callable[..., Any]


_loaded: dict[str, OwnNetwork] = {}


def is_reference(name: str) -> bool:
    """Return True if a configured name is that of a file."""
    return REFERENCE.fullmatch(name) is not None


def is_own(name: str) -> bool:
    """Return True for an announced name of a file, or a name of torchvision."""
    return bool(ANNOUNCED.fullmatch(name) or TORCHVISION.fullmatch(name))


def in_zoo(name: str) -> bool:
    """Return True unless a configured name is one of a file or of torchvision."""
    return not (is_reference(name) or is_own(name))


def check_reference(name: str) -> None:
    """Refuse what does not name a user's network in a file; the file is read, not imported."""
    if not is_reference(name):
        raise ConfigError(
            f"'{name}' is not of the form path/to/net.py:make; other networks need no entry"
        )
    announced_name(name)


def absolute_reference(name: str, folder: Path) -> str:
    """Return the name with an absolute path, if it has one; it starts from this folder."""
    match = REFERENCE.fullmatch(name)
    if match is None:
        return name
    path = folder.absolute() / Path(match[1]).expanduser()
    return str(path) if match[2] is None else f"{path}:{match[2]}"


def announced_name(name: str) -> str:
    """Return a configured name as it is announced; a file is read, but not imported."""
    if not is_reference(name):
        return name
    path, function = _parts(name)
    return f"{function}@{file_sha256(path, ConfigError)}"


def load(name: str) -> str:
    """Import the file of a configured name, if it is one; return the name that is announced."""
    if not is_reference(name):
        return name
    path, function = _parts(name)
    module = import_file(path, ConfigError)
    make = vars(module).get(function)
    if make is None:
        raise ConfigError(f"{path} has no '{function}'; name the callable that makes the network")
    if not callable(make):
        raise ConfigError(f"{path}: '{function}' is a {type(make).__name__}, not a callable")
    announced = f"{function}@{sha256_in(module.__name__)}"
    _loaded[announced] = OwnNetwork(f"{path.name}:{function}", make)
    return announced


def loaded(name: str) -> OwnNetwork:
    """Return the network of an announced name, which this process must have loaded."""
    vision = TORCHVISION.fullmatch(name)
    if vision is not None:
        return OwnNetwork(name, _torchvision(vision[1]))
    if name not in _loaded:
        function, _, sha256 = name.partition("@")
        raise ConfigError(
            f"network '{function}' is in a user's own file (SHA-256 {sha256}), which is not loaded "
            "here: name it as path/to/net.py:NAME"
        )
    return _loaded[name]


def check_allowed(name: str, allowed: Iterable[str]) -> None:
    """Refuse a user's network that a federation announces and this device does not allow.

    Args:
        name: the announced name; networks of the zoo and of torchvision are always allowed.
        allowed: the announced names of the device's own files.
    """
    match = ANNOUNCED.fullmatch(name)
    if match is None or name in (mine := [*allowed]):
        return
    function, sha256 = match[1], match[2]
    ours = [other.partition("@")[2] for other in mine if other.startswith(f"{function}@")]
    if ours:
        raise ConfigError(
            f"the federation's network '{function}' is in a file with SHA-256 {sha256}, but this "
            f"device's has {', '.join(ours)}: use the same file on both"
        )
    raise ConfigError(
        f"the federation's network '{function}' is in a user's own file (SHA-256 {sha256}) that "
        f'this device does not have: allow it with networks = ["path/to/net.py:{function}"] in the '
        "agent's configuration, or with --network"
    )


def _parts(reference: str) -> tuple[Path, str]:
    match = REFERENCE.fullmatch(reference)
    assert match is not None
    path, function = match[1], match[2]
    if not function:
        raise ConfigError(f"'{path}' is a file, but which network in it? Write {path}:make")
    if not ANNOUNCED.fullmatch(f"{function}@{'0' * 64}"):
        raise ConfigError(f"'{reference}': '{function}' is not the name of a callable")
    return Path(path).expanduser().absolute(), function


def check_installed(name: str) -> None:
    """Refuse a network of torchvision where torchvision is not installed; without importing it."""
    if TORCHVISION.fullmatch(name) and find_spec("torchvision") is None:
        raise ConfigError(
            f"{name} needs torchvision, which is not installed: pip install 'fededge[vision]'"
        )


def _torchvision(name: str) -> Callable[..., Any]:
    check_installed(f"torchvision:{name}")
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise ConfigError(unknown("classification network of torchvision", name, known))

    def make(classes: int, shape: tuple[int, ...]) -> Any:
        return models.get_model(name, weights=None, num_classes=classes)

    return make
