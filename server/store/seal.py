"""The seal of the journal: a checksum over all its rows, and marks of it outside of SQLite.

The checksum is a sum of the rows' hashes, so that a row can be added or removed without reading
the others. It is committed with every transaction, under a number that counts them; so a row that
was changed by anything else is noticed. A journal that went back as a whole fits its own checksum:
that it did is told by the marks, which are written after the commit. The journal may thus be ahead
of its marks, by what a crash kept from being marked, and never behind them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from fededge.errors import StoreError
from fededge.storage.files import disk_error, replace_file, write_at
from fededge.storage.sealed import read_sealed, sealed

__all__ = ["Mark", "Marks", "Row", "Seal", "ahead_of_marks"]

log = logging.getLogger("coordinator")

Row = tuple[object, ...]

MODULUS = 1 << 256
BLOCK = 512
"""A disk writes so many bytes at once: the latest mark lies within, and is not torn."""


class Seal(NamedTuple):
    """The number of the journal's transactions, and the sum of its rows' hashes."""

    entries: int = 0
    total: int = 0

    def with_rows(self, table: str, rows: Iterable[Row]) -> Seal:
        added = sum(_hash(table, row) for row in rows)
        return self._replace(total=(self.total + added) % MODULUS)

    def without_rows(self, table: str, rows: Iterable[Row]) -> Seal:
        removed = sum(_hash(table, row) for row in rows)
        return self._replace(total=(self.total - removed) % MODULUS)

    @property
    def head(self) -> str:
        """The checksum that is written down."""
        return hashlib.sha256(f"{self.entries} {self.total:064x}".encode()).hexdigest()


def _hash(table: str, row: Row) -> int:
    """JSON, for it is the same whatever version of Python writes it."""
    text = json.dumps([table, *row], default=repr)
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


class Mark(Struct, frozen=True):
    """A journal's state at a time: its run, its newest version, and its seal."""

    run: str
    rounds: int
    version: str
    sha256: str
    entries: int
    head: str


class Marks:
    """Two files beside the journal. The constructor only stores.

    `run.latest` is overwritten after every transaction and not synced: it outlives the process, if
    not always a power cut. `run.json` is replaced and synced soon after a version: no round waits.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.json"
        self.latest = folder / "run.latest"
        self.found: dict[Path, Mark] = {}

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.path, self.latest

    def read(self) -> None:
        """Find those that are there and whole."""
        marks = {path: read_sealed(path, Mark) for path in self.paths}
        self.found = {path: mark for path, mark in marks.items() if mark is not None}

    def sync(self) -> None:
        """Make the latest mark durable, if it is of another version; tried again if it fails."""
        latest, durable = self.found.get(self.latest), self.found.get(self.path)
        if latest is not None and (durable is None or durable.version != latest.version):
            replace_file(self.path, sealed(latest) + b"\n")
            self.found[self.path] = latest

    def write(self, mark: Mark) -> None:
        """Follow the journal. What could not be written is tried again the next time."""
        self.found[self.latest] = mark
        try:
            write_at(self.latest, 0, sealed(mark).ljust(BLOCK - 1) + b"\n")
        except OSError as error:
            raise disk_error(self.latest, error) from None


@contextlib.contextmanager
def ahead_of_marks() -> Iterator[None]:
    """Marks that cannot be written are a line in the log: the journal may be ahead of them."""
    try:
        yield
    except StoreError as error:
        log.warning("%s", error, extra={"event": "marks-not-written"})
