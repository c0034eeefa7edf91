"""A user's own Python files: imported once, known by the SHA-256 of their content.

An import runs the file, so only text from this machine's own user may name one.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from functools import cache
from pathlib import Path
from types import ModuleType

from fededge.errors import FedEdgeError

__all__ = ["failed_line", "file_sha256", "import_file", "imported", "sha256_in", "summary"]

MODULE = "fededge_own_"


class OwnFileError(Exception):
    """A file that cannot be imported, in a sentence."""


def import_file(path: Path, kind: type[FedEdgeError]) -> ModuleType:
    """Import the file once per process: later changes of the file have no effect.

    Raises:
        FedEdgeError: of this kind, if the file is not there or cannot be imported.
    """
    try:
        return imported(path)
    except OwnFileError as error:
        raise kind(str(error)) from None


def file_sha256(path: Path, kind: type[FedEdgeError]) -> str:
    """Return the SHA-256 of the file as it is now, without importing it."""
    try:
        return hashlib.sha256(_read(path)).hexdigest()
    except OwnFileError as error:
        raise kind(str(error)) from None


def sha256_in(module: str) -> str:
    """Return the SHA-256 in the name of a user's module; empty for another module."""
    return module.removeprefix(MODULE) if module.startswith(MODULE) else ""


def failed_line(error: BaseException, short: bool = False) -> str:
    """Return the last file and line of a user's in a traceback; empty if there is none.

    Args:
        short: the file without its folder.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith(MODULE)]
    files = {module.__file__ for module in modules}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if frame.filename in files]
    if not lines:
        return ""
    file = Path(lines[-1].filename)
    return f"{file.name if short else file}, line {lines[-1].lineno}: "


def summary(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@cache
def imported(path: Path) -> ModuleType:
    source = _read(path)
    module = ModuleType(MODULE + hashlib.sha256(source).hexdigest())
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses resolve annotations there
    try:
        # Without importlib: the hashed bytes are those that run, and no cache file is written.
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise OwnFileError(f"{path}{line}: syntax error ({error.msg})") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        where = _last_line(path, error)
        raise OwnFileError(f"{where}: import failed ({summary(error)})") from None
    return module


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise OwnFileError(f"{path}: there is no such file") from None
    except OSError as error:
        raise OwnFileError(f"{path}: cannot be read ({error.strerror})") from None


def _last_line(path: Path, error: BaseException) -> str:
    """Return the file and its last line in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
