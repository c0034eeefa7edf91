"""Files that are either the old one or the new one, whatever moment the power fails at."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from fededge.errors import DiskFullError, StoreError

__all__ = ["disk_error", "fsync_folder", "lock_folder", "replace_file"]


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


def lock_folder(folder: Path, other: str) -> IO[str]:
    """Take a folder for this process alone, until the file that is returned is closed."""
    path = folder / "lock"
    try:
        path.touch(0o600)
        lock = path.open("w")
    except OSError as error:
        raise disk_error(path, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StoreError(f"{folder}: {other} uses this state folder") from None
    return lock


def disk_error(path: Path, error: OSError) -> StoreError:
    """One sentence for what the operating system said about a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: the disk is full; free some space and start again")
    return StoreError(f"{path}: cannot be written ({error.strerror})")
