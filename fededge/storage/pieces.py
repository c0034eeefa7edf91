"""Where chunks land: a file that is written piece by piece and read back whole.

Beside it lies a list of what has come: a line that says what is expected, then a record a piece.
Nothing of it is synced, for the line has its checksum, and each record that of its piece: whatever
a crash has left is known for what it is, and only the rest has to come again.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import TypeVar

from fededge.errors import WireError
from fededge.storage.files import disk_error, stream_sha256, write_at
from fededge.storage.sealed import sealed, unsealed
from fededge.wire.messages import Manifest, Message

__all__ = [
    "arrived",
    "check_whole",
    "complete",
    "expect",
    "expected",
    "forget",
    "write_piece",
]

RECORD = struct.Struct("<QII")  # offset, length, CRC-32

M = TypeVar("M", bound=Message)


def expect(path: Path, message: Message) -> None:
    """Begin a transfer: the message says of what, and nothing has come."""
    try:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        write_at(_list(path), 0, sealed(message) + b"\n", os.O_TRUNC)
    except OSError as error:
        raise disk_error(path, error) from None


def expected(path: Path, kind: type[M]) -> M | None:
    """What a transfer was begun with, if it can still be read."""
    try:
        with _list(path).open("rb") as file:
            return unsealed(file.readline(), kind)
    except OSError:
        return None


def write_piece(path: Path, offset: int, data: bytes) -> None:
    """Put a piece in its place; pieces may come in any order and again."""
    record = RECORD.pack(offset, len(data), zlib.crc32(data))
    try:
        write_at(path, offset, data)
        write_at(_list(path), 0, record, os.O_APPEND)
    except OSError as error:
        raise disk_error(path, error) from None


def arrived(path: Path, facts: Manifest) -> frozenset[int]:
    """The chunks that are in the file as they came."""
    try:
        _, _, records = _list(path).read_bytes().partition(b"\n")
        with path.open("rb") as file:
            whole = len(records) // RECORD.size * RECORD.size
            found = [_index(file.fileno(), facts, *r) for r in RECORD.iter_unpack(records[:whole])]
    except OSError:
        return frozenset()
    return frozenset(index for index in found if index is not None)


def _index(handle: int, facts: Manifest, offset: int, length: int, checksum: int) -> int | None:
    """Which chunk a record is of; None if the file does not hold it."""
    index, odd = divmod(offset, facts.chunk_bytes)
    if odd or index >= facts.chunks or length > facts.chunk_bytes:
        return None
    data = os.pread(handle, length, offset)
    due = min(facts.chunk_bytes, facts.bytes - offset)
    return index if len(data) == due and zlib.crc32(data) == checksum else None


def check_whole(path: Path, facts: Manifest) -> None:
    """Make all pieces durable; a WireError if they are not what the manifest says."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != facts.bytes:
                raise WireError(f"it is not the {facts.bytes} bytes that its manifest says")
            if stream_sha256(file) != facts.sha256:
                raise WireError("its SHA-256 does not fit its manifest")
            os.fsync(file.fileno())
    except FileNotFoundError:
        raise WireError("no piece of it is there") from None
    except OSError as error:
        raise disk_error(path, error) from None


def complete(path: Path) -> None:
    """The transfer is over: the file stays, the list of its pieces goes."""
    _list(path).unlink(missing_ok=True)


def forget(path: Path) -> None:
    """Remove what has come, and the list of it."""
    path.unlink(missing_ok=True)
    _list(path).unlink(missing_ok=True)


def _list(path: Path) -> Path:
    return path.with_suffix(".coming")
