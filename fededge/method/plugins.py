"""Methods of a user's own: one file outside of the package, named as `path/to/file.py:Name`.

The file is imported, so only a text that the machine's own user has written may name one. What a
federation announces never does: a name and the SHA-256 of the file that it means.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
import traceback
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

from fededge._internal.plain_text import SCALAR_NAME
from fededge.errors import FedEdgeError, MethodError
from fededge.method.base import Method

__all__ = ["calling", "located", "references", "resolved", "sha256_of", "telling_lines"]

# Where a layer begins: a path, up to its `.py:`, and a name. A + or a parenthesis may be in a path
# that begins as one (/, ./, ~ or a drive); elsewhere they belong to the composition.
REFERENCE = re.compile(
    r"(\A|\+)\s*((?:(?:[/\\.~]|[A-Za-z]:[/\\]).*?|[^+()@:]*?)\.py)\s*:\s*([\w-]+)"
)
NAMELESS = re.compile(r"([^+()@]*\.py)\s*(?:[+(@]|\Z)")
MODULE = "fededge_own_"
SCALAR = re.compile(SCALAR_NAME)


def resolved(text: str, taken: Mapping[str, type[Method]]) -> tuple[str, dict[str, type[Method]]]:
    """A text with the names of methods for their files, and the methods of these names."""
    found: dict[str, type[Method]] = {}

    def name(match: re.Match[str]) -> str:
        kind = _load(Path(match[2]).expanduser().absolute(), match[3], taken)
        found[kind.name] = kind
        return f"{match[1]}{kind.name}"

    plain = REFERENCE.sub(name, text)
    nameless = NAMELESS.search(plain)
    if nameless is not None:
        file = nameless[1].strip()
        raise MethodError(f"'{file}' is a file, but which method in it? Write {file}:Name")
    return plain, found


def located(text: str, folder: Path) -> str:
    """The text with the paths in it made absolute; relative ones are seen from this folder."""

    def place(match: re.Match[str]) -> str:
        path = folder.absolute() / Path(match[2]).expanduser()
        return f"{match[1]}{path}:{match[3]}"

    return REFERENCE.sub(place, text)


def references(text: str) -> list[str]:
    """The files in a text, each with the method that is named in it."""
    return [f"{match[2]}:{match[3]}" for match in REFERENCE.finditer(text)]


def sha256_of(kind: type[Method]) -> str:
    """Of the file that a method was loaded from; empty for those of the package."""
    module = kind.__module__
    return module.removeprefix(MODULE) if module.startswith(MODULE) else ""


@contextmanager
def telling_lines() -> Iterator[None]:
    """Make a sentence with file and line of what goes wrong inside of a user's own method."""
    try:
        yield
    except FedEdgeError:
        raise
    except Exception as error:
        line = _own_line(error)
        if not line:
            raise
        raise MethodError(f"{line}{_said(error)}") from error


@contextmanager
def calling(layer: Method, hook: str) -> Iterator[None]:
    """Make a MethodError of whatever a hook raises; a method may be anybody's.

    Numpy does not warn meanwhile: numbers that are not finite get a sentence where they come back.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except (MethodError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        said = f"{_own_line(error)}{_said(error)}"
        raise MethodError(f"{layer.name}: {hook} failed ({said})") from error


def _own_line(error: BaseException) -> str:
    """File and last line of a user's own method on the way to an error; empty if there is none."""
    modules = [module for name, module in sys.modules.items() if name.startswith(MODULE)]
    files = {module.__file__ for module in modules}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if frame.filename in files]
    return f"{lines[-1].filename}, line {lines[-1].lineno}: " if lines else ""


def _load(path: Path, name: str, taken: Mapping[str, type[Method]]) -> type[Method]:
    """Import a file, and give the method in it that has this name, or whose class has."""
    module = _module(path)
    try:
        kind = _find(module, name)
        _check(kind)
        if taken.get(kind.name, kind) is not kind:
            raise MethodError(f"'{kind.name}' is a method of FedEdge's; choose another name")
    except MethodError as error:
        raise MethodError(f"{path}: {error}") from None
    return kind


@cache
def _module(path: Path) -> ModuleType:
    """The file as a module; imported once in a process, which does not change with its file."""
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise MethodError(f"{path}: there is no such file") from None
    except OSError as error:
        raise MethodError(f"{path}: cannot be read ({error.strerror})") from None
    module = ModuleType(MODULE + hashlib.sha256(source).hexdigest())
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look there for what annotations mean
    try:
        # Not by importlib: what is hashed is what runs, and nothing is written beside the file.
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise MethodError(f"{path}{line}: not Python ({error.msg})") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise any
        raise MethodError(f"{_place(path, error)}: its import fails ({_said(error)})") from None
    return module


def _place(path: Path, error: BaseException) -> str:
    """The file, and its last line that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _said(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _find(module: ModuleType, name: str) -> type[Method]:
    """A class that is written in this file, by its own name or by its method's."""
    written = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    kinds = [value for value in written if issubclass(value, Method)]
    for kind in kinds:
        if name in (kind.__name__, kind.name):
            return kind
    if name in (value.__name__ for value in written):
        raise MethodError(f"{name} is not a method: it must inherit from fededge.methods.Method")
    there = ", ".join(kind.__name__ for kind in kinds)
    raise MethodError(f"there is no method '{name}'; there is {there or 'none at all'}")


def _check(kind: type[Method]) -> None:
    """What every method of the package keeps to, and a configuration relies on."""
    title = kind.__name__
    if "__dataclass_params__" not in vars(kind):
        raise MethodError(f"{title} is not a frozen dataclass: write @dataclass(frozen=True) above")
    if not isinstance(vars(kind).get("name"), str) or not re.fullmatch(r"[\w-]{1,64}", kind.name):
        raise MethodError(f"{title} needs a name of letters, digits, - and _: name: ClassVar[str]")
    try:
        typing.get_type_hints(kind)
    except Exception as error:  # noqa: BLE001 - annotations are code too
        raise MethodError(f"the types of {title} are not known ({_said(error)})") from None
    for field in dataclasses.fields(kind):
        if not isinstance(field.default, bool | int | float | str):
            raise MethodError(
                f"option '{field.name}' of {title} needs a default: a number, a word, True or False"
            )
    for scalar in kind.scalars:
        if not SCALAR.fullmatch(scalar):
            raise MethodError(f"scalar '{scalar}' of {title} must be lower-case letters, digits, _")
