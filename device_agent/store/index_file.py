"""The index on disk: two files that are written in turn, the one with the higher serial counts."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from fededge.errors import StoreError
from fededge.storage.files import disk_error, fsync_file, replace_file, write_at
from fededge.storage.sealed import read_sealed, sealed
from fededge_agent.store.index import FORMAT, Index, IndexFormat

__all__ = ["IndexFile", "newest"]

log = logging.getLogger("agent")

NAMES = ("agent.json", "agent.before.json")


def newest(indices: tuple[Index | None, Index | None]) -> int | None:
    """The one of the two files that counts; None if neither can be read."""
    first, second = indices
    if first is None or second is None:
        return None if first is second else int(first is None)
    return int(second.serial > first.serial)


class IndexFile:
    """The index and the one before it, each in a file that has its checksum.

    A change overwrites the file that is not durable, or not the newest: one of the two is whole at
    any moment. A change that is not synced outlives the process, but not always a power cut: then
    the last synced one counts. `current` is the index, `spare` the one in the other file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = tuple(folder / name for name in NAMES)
        self._indices = [Index(instance=""), Index(instance="")]
        self._newest = self._durable = 1
        self._trusted = 0

    @property
    def current(self) -> Index:
        return self._indices[self._newest]

    @property
    def spare(self) -> Index:
        return self._indices[1 - self._newest]

    @property
    def path(self) -> Path:
        """The file of the current index."""
        return self.paths[self._newest]

    def read(self) -> bool:
        """Read the index, or the one before it if it is damaged; False if neither can be read."""
        self._check_format()
        first, second = (read_sealed(path, Index) for path in self.paths)
        at = newest((first, second))
        if at is None:
            return False
        self._newest = self._durable = at
        self._indices = [index or self.current for index in (first, second)]
        try:
            fsync_file(self.path)  # an earlier process may not have
        except OSError as error:
            raise disk_error(self.path, error) from None
        if first is None or second is None:
            damaged, whole = self.paths[1 - at], self.path.name
            log.warning("%s: missing or damaged; using the index in %s", damaged, whole)
            self._write(self.current)
        return True

    def _check_format(self) -> None:
        for path in self.paths:
            found = read_sealed(path, IndexFormat)
            if found is not None and found.format > FORMAT:
                raise StoreError(
                    f"{path}: this state has format {found.format}, written by a newer version of "
                    f"FedEdge; this one reads formats up to {FORMAT}: upgrade FedEdge on this "
                    "device, or choose another state folder"
                )

    def begin(self, index: Index) -> None:
        """Write the first index, into both files."""
        for _ in NAMES:
            self._write(index)

    def change(self, synced: bool = True, **fields: Any) -> None:
        trusted = max(self._trusted, self.current.trusted)
        self._write(msgspec.structs.replace(self.current, trusted=trusted, **fields), synced)

    def trust(self, issued: int) -> None:
        """Remember when the newest signed state was issued: with the next change of the index.

        The first one is written at once: the index must know that there was one.
        """
        self._trusted = issued
        if not self.current.trusted:
            self.change()

    def _write(self, index: Index, synced: bool = True) -> None:
        """Overwrite the file beside the durable one; what the index names is on disk already."""
        at = 1 - self._durable
        path = self.paths[at]
        index = msgspec.structs.replace(index, serial=self.current.serial + 1)
        try:
            if path.exists():
                write_at(path, 0, sealed(index) + b"\n", os.O_TRUNC)
            else:  # a new file is whole or not there: the first of all has no other beside it
                replace_file(path, sealed(index) + b"\n")
                path.chmod(0o600)  # until then the mode of the folder keeps others out
            if synced:
                fsync_file(path)
        except OSError as error:
            with contextlib.suppress(OSError):  # a failed change must not count after a restart
                os.truncate(path, 0)
            raise disk_error(path, error) from None
        self._indices[at] = index
        self._newest, self._durable = at, at if synced else self._durable
