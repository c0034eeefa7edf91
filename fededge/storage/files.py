"""Files that are either the old one or the new one, whatever moment the power fails at."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from fededge.errors import ConfigError, DiskFullError, FedEdgeError, StoreError

__all__ = [
    "Digesting",
    "check_private",
    "disk_error",
    "fsync_folder",
    "lock_folder",
    "make_folder",
    "read_bounded",
    "read_file",
    "replace_file",
    "replacing",
    "stream_sha256",
    "write_at",
    "write_private",
]

BLOCK = 1 << 20


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`: to a neighbour, fsync, rename over it, fsync the folder."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, synced: bool = True) -> Iterator[Digesting]:
    """A file to be written that takes the place of `path` at the end of the block.

    Args:
        path: is either the old file or the new one, whatever happens.
        synced: whether the new one is to be durable then.
    """
    neighbour = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with neighbour.open("wb") as file:
            yield Digesting(file)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        os.replace(neighbour, path)
        if synced:
            fsync_folder(path.parent)
    except (OSError, FedEdgeError) as error:
        with contextlib.suppress(OSError):  # what is left of it would only fill the disk
            neighbour.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise disk_error(path, error) from error
        raise


class Digesting:
    """A file that is being written, and the SHA-256 of what was."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview, /) -> int:
        self._digest.update(data)
        return self._file.write(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def fsync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """A folder that a power cut cannot take, nor those above it that were not there."""
    made = [path, *(folder for folder in path.parents if not folder.exists())]
    path.mkdir(parents=True, exist_ok=True)
    for folder in made:
        with contextlib.suppress(PermissionError):  # then somebody else has made it
            fsync_folder(folder.parent)


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


def read_file(what: str, path: Path) -> bytes:
    """A file that a configuration names; `what` is the key that names it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{what}: there is no file '{path}'") from None
    except OSError as error:
        raise ConfigError(f"{what}: '{path}' cannot be read ({error.strerror})") from None


def read_bounded(path: Path, most: int) -> bytes:
    """An ordinary file of at most so many bytes, which others may have put there.

    Raises:
        OSError: it cannot be read, is too large, or is none: a pipe would wait for its writer, and
            a device never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file")
        if about.st_size > most:
            text = f"it has {about.st_size:,} bytes, more than the {most:,} that are allowed"
            raise OSError(errno.EFBIG, text)
        return file.read(about.st_size)


def stream_sha256(file: BinaryIO) -> str:
    """The SHA-256 of what is left of a file; no more than a block of it is in memory."""
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def check_private(what: str, path: Path) -> None:
    """Refuse a secret that every user of this machine can read; a group may share it."""
    if path.stat().st_mode & 0o007:
        raise ConfigError(f"{what}: everybody can read '{path}'; close it: chmod 600 {path}")


def write_private(path: Path, data: bytes) -> None:
    """Write a file that nobody else can read, not even for a moment."""
    neighbour = path.with_name(f".{path.name}.new")
    try:
        neighbour.unlink(missing_ok=True)
        handle = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(neighbour, path)
        fsync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from None


def write_at(path: Path, offset: int, data: bytes, flags: int = 0) -> None:
    """Write into a file, not synced; with `flags` (os.O_APPEND, os.O_TRUNC) where these say."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    try:
        while data:
            written = os.write(handle, data) if flags else os.pwrite(handle, data, offset)
            data, offset = data[written:], offset + written
    finally:
        os.close(handle)


def disk_error(path: Path, error: OSError) -> StoreError:
    """One sentence for what the operating system said about a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: the disk is full; free some space and start again")
    return StoreError(f"{path}: cannot be written ({error.strerror})")
