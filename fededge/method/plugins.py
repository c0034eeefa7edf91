"""Plugins: methods in a user's own file, named as `path/to/file.py:Name`.

The file is imported, so only text from this machine's own user may name one. A federation
announces a plugin by its method name and the SHA-256 of its file, never by a path.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fededge._internal.own_files import failed_line, import_file, sha256_in, summary
from fededge._internal.plain_text import SCALAR_NAME
from fededge.errors import FedEdgeError, MethodError
from fededge.method.base import Method

__all__ = [
    "absolute_paths",
    "hook_errors",
    "load_references",
    "plugin_errors",
    "references",
    "sha256_of",
]

# At the start of a layer: a path up to `.py:`, and a name. A path that begins as one (/, ./, ~ or
# a drive) may contain a + or a parenthesis; elsewhere they belong to the composition.
REFERENCE = re.compile(
    r"(\A|\+)\s*((?:(?:[/\\.~]|[A-Za-z]:[/\\]).*?|[^+()@:]*?)\.py)\s*:\s*([\w-]+)"
)
NAMELESS = re.compile(r"([^+()@]*\.py)\s*(?:[+(@]|\Z)")
SCALAR = re.compile(SCALAR_NAME)


def load_references(
    text: str, taken: Mapping[str, type[Method]]
) -> tuple[str, dict[str, type[Method]]]:
    """Import the files in a text; return it with method names in their place, and the methods."""
    found: dict[str, type[Method]] = {}

    def name(match: re.Match[str]) -> str:
        kind = _load_method(Path(match[2]).expanduser().absolute(), match[3], taken)
        found[kind.name] = kind
        return f"{match[1]}{kind.name}"

    plain = REFERENCE.sub(name, text)
    nameless = NAMELESS.search(plain)
    if nameless is not None:
        file = nameless[1].strip()
        raise MethodError(f"'{file}' is a file, but which method in it? Write {file}:Name")
    return plain, found


def absolute_paths(text: str, folder: Path) -> str:
    """Return the text with absolute paths; relative ones start from this folder."""

    def place(match: re.Match[str]) -> str:
        path = folder.absolute() / Path(match[2]).expanduser()
        return f"{match[1]}{path}:{match[3]}"

    return REFERENCE.sub(place, text)


def references(text: str) -> list[str]:
    """Return the plugin references in a text, each as `path/to/file.py:Name`."""
    return [f"{match[2]}:{match[3]}" for match in REFERENCE.finditer(text)]


def sha256_of(kind: type[Method]) -> str:
    """Return the SHA-256 of a plugin's file; empty for FedEdge's own methods."""
    return sha256_in(kind.__module__)


@contextmanager
def plugin_errors() -> Iterator[None]:
    """Turn an exception inside a plugin into a MethodError with its file and line."""
    try:
        yield
    except FedEdgeError:
        raise
    except Exception as error:
        line = failed_line(error)
        if not line:
            raise
        raise MethodError(f"{line}{summary(error)}") from error


@contextmanager
def hook_errors(layer: Method, hook: str) -> Iterator[None]:
    """Turn any exception of a hook into a MethodError, for a method may be a plugin.

    Numpy's warnings are off inside: the caller checks the result for numbers that are not finite.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except (MethodError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        reason = f"{failed_line(error)}{summary(error)}"
        raise MethodError(f"{layer.name}: {hook} failed ({reason})") from error


def _load_method(path: Path, name: str, taken: Mapping[str, type[Method]]) -> type[Method]:
    """Import a file; return its method of this name or class name."""
    kind = _find_class(path, name)
    try:
        _check_class(kind)
        if taken.get(kind.name, kind) is not kind:
            raise MethodError(f"FedEdge has a method '{kind.name}' already; choose another name")
    except MethodError as error:
        raise MethodError(f"{path}: {error}") from None
    return kind


def _find_class(path: Path, name: str) -> type[Method]:
    """Return the method class defined in this file, by class name or method name."""
    module = import_file(path, MethodError)
    defined = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    kinds = [value for value in defined if issubclass(value, Method)]
    for kind in kinds:
        if name in (kind.__name__, kind.name):
            return kind
    if name in (value.__name__ for value in defined):
        raise MethodError(
            f"{path}: {name} is not a method: it must inherit from fededge.methods.Method"
        )
    known = ", ".join(kind.__name__ for kind in kinds)
    raise MethodError(f"{path} has no method '{name}'; it has {known or 'none'}")


def _check_class(kind: type[Method]) -> None:
    """Check what a configuration relies on and every method of the package fulfils."""
    title = kind.__name__
    if "__dataclass_params__" not in vars(kind):
        raise MethodError(f"{title} is not a frozen dataclass: write @dataclass(frozen=True) above")
    if not isinstance(vars(kind).get("name"), str) or not re.fullmatch(r"[\w-]{1,64}", kind.name):
        raise MethodError(f"{title} needs a name of letters, digits, - and _: name: ClassVar[str]")
    try:
        typing.get_type_hints(kind)
    except Exception as error:  # noqa: BLE001 - annotations are code too
        raise MethodError(f"the types of {title} cannot be resolved ({summary(error)})") from None
    for field in dataclasses.fields(kind):
        if not isinstance(field.default, bool | int | float | str):
            raise MethodError(
                f"option '{field.name}' of {title} needs a default: a number, a word, True or False"
            )
    for scalar in kind.scalars:
        if not SCALAR.fullmatch(scalar):
            raise MethodError(
                f"scalar '{scalar}' of {title} must be of lower-case letters, digits and _"
            )
