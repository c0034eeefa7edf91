"""A file as a source of bytes to send, read piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fededge.errors import StoreError

__all__ = ["FileSource"]


@dataclass(frozen=True)
class FileSource:
    """The bytes of a file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def piece(self, start: int, count: int) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                return file.read(count)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error.strerror})") from None
