"""Durable files: atomic replacement that survives a power cut, folder locks, private files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from fededge.errors import ConfigError, DiskFullError, FedEdgeError, StoreError

__all__ = [
    "Digesting",
    "check_private",
    "disk_error",
    "fsync_file",
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
    "write_public",
]

BLOCK = 1 << 20


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` atomically: write a temporary file, fsync, rename, fsync the folder."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(
    path: Path, synced: bool = True, named: bool = True, mode: int = 0o666, chunk_bytes: int = 0
) -> Iterator[Digesting]:
    """Open a temporary file that replaces `path` atomically at the end of the block.

    Args:
        path: always holds either the complete old file or the complete new one.
        synced: make the new file durable (fsync) before returning.
        named: sync the folder as well. A caller that replaces several files of a folder may sync
            it once, with the last of them.
        mode: permissions of a new file, of which the umask takes some.
        chunk_bytes: compute the checksums of chunks of this size too.
    """
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield Digesting(file, chunk_bytes)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if synced and named:
            fsync_folder(path.parent)
    except (OSError, FedEdgeError) as error:
        with contextlib.suppress(OSError):  # leave no partial file on a full disk
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise disk_error(path, error) from error
        raise


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


class Digesting:
    """A file open for writing that computes the SHA-256 of the bytes written.

    With `chunk_bytes` it also computes the CRC-32 of each chunk; `size` counts the bytes.
    """

    def __init__(self, file: BinaryIO, chunk_bytes: int = 0) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._chunk_bytes = chunk_bytes
        self._checksums = [0]
        self._left = chunk_bytes
        self.size = 0

    def write(self, data: bytes | memoryview, /) -> int:
        self._digest.update(data)
        self.size += len(data)
        if self._chunk_bytes:
            self._add_to_chunks(memoryview(data))
        return self._file.write(data)

    def _add_to_chunks(self, data: memoryview) -> None:
        while data:
            if not self._left:  # a chunk begins with its first byte: the last one is not empty
                self._checksums.append(0)
                self._left = self._chunk_bytes
            part, data = data[: self._left], data[self._left :]
            self._checksums[-1] = zlib.crc32(part, self._checksums[-1])
            self._left -= len(part)

    @property
    def checksums(self) -> tuple[int, ...]:
        """The CRC-32 of each chunk; an empty file has one chunk."""
        return tuple(self._checksums)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def fsync_file(path: Path) -> None:
    """Make the content of a file durable; its name needs `fsync_folder`."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    fsync_file(folder)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, durably."""
    made = [path, *(folder for folder in path.parents if not folder.exists())]
    path.mkdir(parents=True, exist_ok=True)
    for folder in made:
        with contextlib.suppress(PermissionError):  # that parent belongs to another user
            fsync_folder(folder.parent)


def lock_folder(folder: Path, other: str) -> IO[str]:
    """Lock a folder for this process, until the returned file is closed.

    Args:
        folder: the state folder.
        other: the program that holds the lock if it is taken, for the error.
    """
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
    """Read a file that the configuration key `what` names."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{what}: there is no file '{path}'") from None
    except OSError as error:
        raise ConfigError(f"{what}: '{path}' cannot be read ({error.strerror})") from None


def read_bounded(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes, which other users may have put there.

    Raises:
        OSError: the file cannot be read, is too large, or is not a regular file: reading a pipe
            could block, and reading a device could never end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if about.st_size > most:
            text = f"{about.st_size:,} bytes, the limit is {most:,}"
            raise OSError(errno.EFBIG, text)
        return file.read(about.st_size)


def stream_sha256(file: BinaryIO) -> str:
    """The SHA-256 of a file from its current position on, read block by block."""
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def check_private(what: str, path: Path) -> None:
    """Refuse a secret file that every user of this machine can read; a group may share it."""
    if path.stat().st_mode & 0o007:
        raise ConfigError(f"{what}: every user can read '{path}'; fix: chmod 600 {path}")


def write_private(path: Path, data: bytes, same_owner: bool = False) -> None:
    """Write a file with mode 0600, which no other user can read at any moment.

    `same_owner`: written by root, it belongs to the owner of the file that it replaces.
    """
    temporary = _temporary(path)
    try:
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            if same_owner and os.geteuid() == 0:
                before = path.lstat()
                os.fchown(handle, before.st_uid, before.st_gid)
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from None


def write_public(path: Path, data: bytes) -> None:
    """Write a file that every user can read, whatever the umask is: a certificate, a public key."""
    replace_file(path, data)
    try:
        path.chmod(0o644)
    except OSError as error:
        raise disk_error(path, error) from None


def write_at(path: Path, offset: int, data: bytes | memoryview, flags: int = 0) -> None:
    """Write `data` at `offset` without fsync; `flags` (os.O_APPEND, os.O_TRUNC) replace it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    try:
        while data:
            written = os.write(handle, data) if flags else os.pwrite(handle, data, offset)
            data, offset = data[written:], offset + written
    finally:
        os.close(handle)


def disk_error(path: Path, error: OSError) -> StoreError:
    """The StoreError for an operating system's error about a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: the disk is full; free some space and start again")
    return StoreError(f"{path}: cannot be written ({error.strerror})")
