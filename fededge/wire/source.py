"""Sources of bytes to send: in memory, or read piece by piece, such as a file."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Pieces", "Source", "piece", "size"]


class Pieces(Protocol):
    """Bytes that are read piece by piece, as by `fededge.storage.source.FileSource`."""

    @property
    def size(self) -> int: ...

    def piece(self, start: int, count: int) -> bytes: ...


Source = bytes | Pieces


def size(source: Source) -> int:
    return len(source) if isinstance(source, bytes) else source.size


def piece(source: Source, start: int, count: int) -> bytes:
    """Read `count` bytes from offset `start`; fewer at the end."""
    if isinstance(source, bytes):
        return source[start : start + count]
    return source.piece(start, count)
