r"""A backup: the files of a state folder in one file, which is written at once and checked whole.

    fededge backup 1\n
    the files' bytes, one after the other
    the contents: sealed JSON with the name, size and SHA-256 of each file
    8 bytes: the length of the contents, big-endian
    fededge\n

Whoever restores one may have it from anywhere: sizes and names are checked before anything is
written, and nothing outside of the new folder can be named. The file holds private state and
secrets, so that only its owner can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct

from fededge.errors import StoreError
from fededge.storage.files import Digesting, disk_error, fsync_folder, make_folder, replacing
from fededge.storage.sealed import sealed, unsealed

__all__ = [
    "ArchivedFile",
    "Contents",
    "VanishedError",
    "read_contents",
    "restore",
    "retried",
    "write_archive",
]

FORMAT = 1
HEAD = b"fededge backup "
TAIL = struct.Struct(">Q8s")
MAGIC = b"fededge\n"

BLOCK = 1 << 20
MAX_CONTENTS = 64 * 1024 * 1024
MAX_HEAD = 64
MAX_DEPTH = 3
ATTEMPTS = 5

PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
"""A part of a name: no dot at its beginning, so neither `..` nor a hidden file."""


class ArchivedFile(Struct, frozen=True):
    """One file: its name relative to the state folder."""

    name: str
    bytes: int
    sha256: str


class Contents(Struct, frozen=True):
    """The contents of a backup; `stands` says where its service stood, for people."""

    kind: Literal["coordinator", "agent"]
    federation: str
    device: str
    software: str
    made: str
    stands: str
    files: tuple[ArchivedFile, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)


class VanishedError(StoreError):
    """A file that belongs to the backup was replaced or removed while it was read."""

    def __init__(self, place: Path) -> None:
        super().__init__(f"{place}: damaged, or it changes too quickly for a backup; try again")


def retried(attempt: Callable[[], Contents]) -> Contents:
    """Make a backup of a service that may run: try again while its files change."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(VanishedError):
            return attempt()
    return attempt()


def write_archive(path: Path, about: Contents, files: Mapping[str, tuple[Path, str]]) -> Contents:
    """Write a backup of these files, each with its place and SHA-256, empty if that is unknown.

    Raises:
        VanishedError: a file is gone, or is not what it should be; nothing was written.
    """
    entries = []
    with replacing(path, mode=0o600) as target:
        target.write(HEAD + f"{FORMAT}\n".encode())
        for name, (place, sha256) in sorted(files.items()):
            entries.append(_copy(name, place, target))
            if sha256 not in ("", entries[-1].sha256):
                raise VanishedError(place)
        contents = msgspec.structs.replace(about, files=tuple(entries))
        data = sealed(contents)
        target.write(data + TAIL.pack(len(data), MAGIC))
    return contents


def _copy(name: str, place: Path, target: Digesting) -> ArchivedFile:
    digest, size = hashlib.sha256(), 0
    for block in _blocks(place):
        digest.update(block)
        size += target.write(block)
    return ArchivedFile(name, size, digest.hexdigest())


def _blocks(place: Path) -> Iterator[bytes]:
    try:
        with place.open("rb") as file:
            while block := file.read(BLOCK):
                yield block
    except OSError:
        raise VanishedError(place) from None


def read_contents(path: Path) -> Contents:
    """Check all of a backup; StoreError says what is wrong."""
    with _reading(path) as file:
        contents = _contents(path, file)
        for entry in contents.files:
            digest = hashlib.sha256()
            for block in _bytes(file, entry):
                digest.update(block)
            _check_file(path, entry, digest.hexdigest())
        return contents


def _bytes(file: BinaryIO, entry: ArchivedFile) -> Iterator[bytes]:
    left = entry.bytes
    while left and (block := file.read(min(BLOCK, left))):
        left -= len(block)
        yield block


def _check_file(path: Path, entry: ArchivedFile, sha256: str) -> None:
    if sha256 != entry.sha256:
        raise _damaged(path, f"{entry.name} in it is not as written")


def _contents(path: Path, file: BinaryIO) -> Contents:
    """Read the contents; the file then stands at the first file's bytes."""
    size, head = os.fstat(file.fileno()).st_size, _head(path, file)
    file.seek(max(size - TAIL.size, 0))
    tail = file.read(TAIL.size)
    length, magic = TAIL.unpack(tail) if len(tail) == TAIL.size else (0, b"")
    room = size - TAIL.size - head
    if magic != MAGIC or not 0 < length <= min(room, MAX_CONTENTS):
        raise _damaged(path, "its end is missing")
    file.seek(size - TAIL.size - length)
    contents = unsealed(file.read(length), Contents)
    if contents is None:
        raise _damaged(path, "its contents are not as written")
    if min((entry.bytes for entry in contents.files), default=0) < 0 or (
        contents.bytes != room - length
    ):
        raise _damaged(path, "its size is not that of its files")
    _check_names(path, [entry.name for entry in contents.files])
    file.seek(head)
    return contents


def _head(path: Path, file: BinaryIO) -> int:
    """Check the first line; its length."""
    line = file.readline(MAX_HEAD)
    found = re.fullmatch(re.escape(HEAD) + rb"([0-9]{1,9})\n", line)
    if found is None:
        raise StoreError(f"{path}: this is no backup of FedEdge")
    if int(found[1]) > FORMAT:
        raise StoreError(
            f"{path}: this backup has format {int(found[1])}, written by a newer version of "
            f"FedEdge; this one reads formats up to {FORMAT}: upgrade FedEdge on this machine"
        )
    return len(line)


def _check_names(path: Path, names: list[str]) -> None:
    """Refuse names that lead out of the folder, that come twice, or that are folders as well."""
    parents: set[str] = set()
    for name in names:
        parts = name.split("/")
        if len(parts) > MAX_DEPTH or not all(PART.fullmatch(part) for part in parts):
            raise _damaged(path, f"a file in it has a name that is not allowed ({name[:80]!r})")
        parents.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    if len({*names}) != len(names) or not parents.isdisjoint(names):
        raise _damaged(path, "two files in it have the same name")


def restore(
    path: Path,
    folder: Path,
    contents: Contents,
    damage: Callable[[Path], Iterable[tuple[str, bool]]],
) -> None:
    """Make a new state folder from a backup: all of it or nothing.

    Args:
        path: the backup.
        folder: must be missing or empty.
        contents: from `read_contents`.
        damage: what is wrong with a draft of the folder, each with True if the service mends it.
    """
    folder = folder.resolve()  # systemd's state folder is a link
    _check_free(folder)
    draft = folder.with_name(f".{folder.name}.restoring")
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of a restore that was cut short
        make_folder(folder.parent)
        draft.mkdir(mode=0o700)
        try:
            _unpack_all(path, draft, contents)
            _check_whole(path, damage(draft))
            _give(draft, folder)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        fsync_folder(folder.parent)
    except OSError as error:
        _check_free(folder)  # a service may have been started meanwhile
        raise disk_error(folder, error) from None


def _check_whole(path: Path, damage: Iterable[tuple[str, bool]]) -> None:
    for what, mended in damage:
        if not mended:
            raise _damaged(path, what)


def _check_free(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(
            f"{folder}: this state folder is in use or holds another state; stop the service and "
            "move the folder away, then restore again"
        )


def _give(draft: Path, folder: Path) -> None:
    """Give the files to the owner of the empty folder that they replace, if we may."""
    if os.geteuid() == 0 and folder.exists():
        owner = folder.stat()
        draft.chmod(owner.st_mode & 0o777)
        for place in (draft, *draft.rglob("*")):
            os.chown(place, owner.st_uid, owner.st_gid)


def _unpack_all(path: Path, folder: Path, contents: Contents) -> None:
    """Write a backup's files into a new folder; StoreError if one of them is not as written."""
    with _reading(path) as file:
        if _contents(path, file) != contents:
            raise _damaged(path, "it has changed while it was read")
        for entry in contents.files:
            _unpack(path, file, folder / entry.name, entry)
    for place in (folder, *(found for found in folder.rglob("*") if found.is_dir())):
        fsync_folder(place)


def _unpack(path: Path, file: BinaryIO, place: Path, entry: ArchivedFile) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(place, named=False, mode=0o600) as target:
        for block in _bytes(file, entry):
            target.write(block)
    _check_file(path, entry, target.sha256)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Open a backup; a pipe or a device is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StoreError(f"{path}: this is no backup of FedEdge")
    with open(handle, "rb") as file:
        yield file


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(f"{path}: this backup is damaged or incomplete: {what}; use another one")
