"""The index on disk: replaced atomically, with a copy of the one before it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from fededge.errors import StoreError
from fededge.storage.files import replace_file
from fededge.storage.sealed import read_sealed, sealed
from fededge_agent.store.index import FORMAT, Index, IndexFormat

__all__ = ["IndexFile"]

log = logging.getLogger("agent")


class IndexFile:
    """Two files: `path` has the current index, `before` the one before it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agent.json"
        self.before = folder / "agent.before.json"
        self.current = Index(instance="")
        self._trusted = 0

    def read(self) -> bool:
        """Read the index, or the one before it if it is damaged; False if neither can be read."""
        self._check_format()
        index, before = read_sealed(self.path, Index), read_sealed(self.before, Index)
        found = index or before
        if found is None:
            return False
        self.current = found
        if index is None:
            log.warning("%s: damaged; using the index before it", self.path)
            self._write(found)
        elif before is None:
            log.warning("%s: missing or damaged; writing it again", self.before)
            _replace(self.before, found)
        return True

    def _check_format(self) -> None:
        for path in (self.path, self.before):
            found = read_sealed(path, IndexFormat)
            if found is not None and found.format > FORMAT:
                raise StoreError(
                    f"{path}: this state has format {found.format}, written by a newer version of "
                    f"FedEdge; this one reads formats up to {FORMAT}: upgrade FedEdge on this "
                    "device, or choose another state folder"
                )

    def begin(self, index: Index) -> None:
        """Write the first index."""
        self.current = index
        self._write(index)

    def change(self, **fields: Any) -> None:
        trusted = max(self._trusted, self.current.trusted)
        self._write(msgspec.structs.replace(self.current, trusted=trusted, **fields))

    def trust(self, issued: int) -> None:
        """Remember when the newest signed state was issued: with the next change of the index.

        The first one is written at once: the index must know that there was one.
        """
        self._trusted = issued
        if not self.current.trusted:
            self.change()

    def _write(self, index: Index) -> None:
        """Replace both files; each time the folder is synced.

        So the files that the new index names are in the folder before the index is.
        """
        _replace(self.before, self.current)
        _replace(self.path, index)
        self.current = index


def _replace(path: Path, index: Index) -> None:
    replace_file(path, sealed(index))
    path.chmod(0o600)  # until then the mode of the folder keeps others out
