"""Files that are either the old one or the new one, whatever moment the power fails at."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from fededge.errors import StoreError

__all__ = ["disk_error", "fsync_folder", "replace_file"]


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`: to a neighbour, fsync, rename over it, fsync the folder."""
    neighbour = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with neighbour.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, path)
        fsync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # what is left of it would only fill the disk
            neighbour.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def fsync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(path: Path, error: OSError) -> StoreError:
    """One sentence for what the operating system said about a file."""
    if error.errno == errno.ENOSPC:
        return StoreError(f"{path}: the disk is full; free some space and start again")
    return StoreError(f"{path}: cannot be written ({error.strerror})")
