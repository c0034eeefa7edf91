"""Bytes that are to be sent: in memory, or in a file of which only a piece at a time is read."""

from __future__ import annotations

from pathlib import Path

from fededge.errors import StoreError

__all__ = ["Source", "piece", "size"]

Source = bytes | Path


def size(source: Source) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def piece(source: Source, start: int, count: int) -> bytes:
    """So many bytes from `start` on; fewer at the end."""
    if isinstance(source, bytes):
        return source[start : start + count]
    try:
        with source.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(count)
    except OSError as error:
        raise StoreError(f"{source}: cannot be read ({error.strerror})") from None
