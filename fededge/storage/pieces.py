"""Received chunks on disk: a file that is written piece by piece and read back whole.

A list beside it has one line with the expected message, then one record per piece. Neither file is
synced: the line has a checksum, and each record has that of its piece. So after a crash the intact
pieces are known, and only the others are requested again.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fededge.errors import WireError
from fededge.storage.files import disk_error, stream_sha256, write_at
from fededge.storage.sealed import sealed, unsealed
from fededge.wire.messages import Manifest, Message

if TYPE_CHECKING:
    from hashlib import _Hash as Digest

__all__ = [
    "Digests",
    "arrived",
    "check_data",
    "check_whole",
    "complete",
    "expect",
    "expected",
    "forget",
    "write_piece",
    "write_whole",
]

RECORD = struct.Struct("<QII")  # offset, length, CRC-32

M = TypeVar("M", bound=Message)

NOTHING = hashlib.sha256(), -1
"""The SHA-256 and the end of a file about which nothing is known: no piece follows on it."""


def expect(path: Path, message: Message) -> None:
    """Begin a transfer with its announcing message, and with no pieces."""
    try:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        write_at(_list(path), 0, sealed(message) + b"\n", os.O_TRUNC)
    except OSError as error:
        raise disk_error(path, error) from None


def expected(path: Path, kind: type[M]) -> M | None:
    """The message that a transfer began with; None if it cannot be read."""
    try:
        with _list(path).open("rb") as file:
            return unsealed(file.readline(), kind)
    except OSError:
        return None


def write_piece(
    path: Path, offset: int, data: bytes | memoryview, checksum: int | None = None
) -> None:
    """Write a piece; pieces may arrive in any order and more than once.

    Args:
        checksum: its CRC-32, if that is known.
    """
    record = RECORD.pack(offset, len(data), zlib.crc32(data) if checksum is None else checksum)
    try:
        write_at(path, offset, data)
        write_at(_list(path), 0, record, os.O_APPEND)
    except OSError as error:
        raise disk_error(path, error) from None


def write_whole(path: Path, data: memoryview) -> None:
    """Write all of a file at once, without a list of pieces: a crash means to begin again."""
    try:
        complete(path)
        write_at(path, 0, data, os.O_TRUNC)
    except OSError as error:
        raise disk_error(path, error) from None


def arrived(path: Path, facts: Manifest) -> frozenset[int]:
    """The indices of the chunks that are intact on disk."""
    try:
        _, _, records = _list(path).read_bytes().partition(b"\n")
        with path.open("rb") as file:
            whole = len(records) // RECORD.size * RECORD.size
            found = [_index(file.fileno(), facts, *r) for r in RECORD.iter_unpack(records[:whole])]
    except OSError:
        return frozenset()
    return frozenset(index for index in found if index is not None)


def _index(handle: int, facts: Manifest, offset: int, length: int, checksum: int) -> int | None:
    """The index of a record's chunk; None if the file does not hold it intact."""
    index, odd = divmod(offset, facts.chunk_bytes)
    if odd or index >= facts.chunks or length > facts.chunk_bytes:
        return None
    data = os.pread(handle, length, offset)
    due = min(facts.chunk_bytes, facts.bytes - offset)
    return index if len(data) == due and zlib.crc32(data) == checksum else None


def check_data(data: memoryview, facts: Manifest) -> None:
    """Check a payload in memory against its manifest; WireError if it differs."""
    _check_size(len(data), facts)
    _check_sha256(hashlib.sha256(data).hexdigest(), facts)


def _check_size(size: int, facts: Manifest) -> None:
    if size != facts.bytes:
        raise WireError(f"its size is not the {facts.bytes} bytes of its manifest")


def _check_sha256(sha256: str, facts: Manifest) -> None:
    if sha256 != facts.sha256:
        raise WireError("its SHA-256 does not match its manifest")


class Digests:
    """The SHA-256 of files on their way, computed while their pieces come in order.

    A file whose pieces came in another order, or to another process, is read once more.
    """

    def __init__(self) -> None:
        self._begun: dict[Path, tuple[Digest, int]] = {}

    def add(self, path: Path, offset: int, data: bytes | memoryview) -> None:
        """A piece was written; one at the beginning of the file begins anew."""
        if offset == 0:
            self._begun[path] = hashlib.sha256(), 0
        digest, end = self._begun.pop(path, NOTHING)
        if offset == end:
            digest.update(data)
            self._begun[path] = digest, offset + len(data)

    def forget(self, path: Path) -> None:
        self._begun.pop(path, None)

    def forget_all(self, folder: Path) -> None:
        """Forget the files of a folder."""
        self._begun = {p: begun for p, begun in self._begun.items() if p.parent != folder}

    def take(self, path: Path, size: int) -> str:
        """The SHA-256 of a file of this size; empty if it is not known."""
        digest, end = self._begun.pop(path, NOTHING)
        return digest.hexdigest() if end == size else ""


def check_whole(path: Path, facts: Manifest, digests: Digests | None = None) -> None:
    """Check the file against its manifest; WireError if it differs. It is not synced.

    Args:
        digests: know the SHA-256 of what was written, if it came in order.
    """
    known = digests.take(path, facts.bytes) if digests is not None else ""
    try:
        with path.open("rb") as file:
            _check_size(os.fstat(file.fileno()).st_size, facts)
            _check_sha256(known or stream_sha256(file), facts)
    except FileNotFoundError:
        raise WireError("none of its chunks has arrived") from None
    except OSError as error:
        raise disk_error(path, error) from None


def complete(path: Path) -> None:
    """End a transfer: keep the file and remove the list of its pieces."""
    _list(path).unlink(missing_ok=True)


def forget(path: Path) -> None:
    """Abandon a transfer: remove the file and the list of its pieces."""
    path.unlink(missing_ok=True)
    _list(path).unlink(missing_ok=True)


def _list(path: Path) -> Path:
    return path.with_suffix(".coming")
