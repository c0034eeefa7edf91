"""The agent's part of a backup: its index and the files that it names, its ledger and its trust.

The agent may run meanwhile. It writes its index after its files, and removes files that no index
names: if one of them is gone, the agent went on, and the index is read again. Personal models are
not part of it: the next turn makes one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from fededge.errors import StoreError
from fededge.storage.archive import Contents, retried, write_archive
from fededge.storage.sealed import read_sealed, sealed
from fededge_agent.store.file_names import LEDGER, TRUST
from fededge_agent.store.index import Index, StoredFile
from fededge_agent.store.index_file import IndexFile, newest
from fededge_agent.store.model_file import model_path
from fededge_agent.store.store import PRIVATE

__all__ = ["back_up"]

BESIDE = (LEDGER, TRUST)
"""Files of the state folder beside the private ones."""

Files = dict[str, tuple[Path, str]]


def back_up(state: Path, path: Path, about: Contents) -> Contents:
    """Write a backup of the agent's state folder; return its contents."""
    return retried(lambda: _attempt(state, path, about))


def _attempt(state: Path, path: Path, about: Contents) -> Contents:
    index = _index(state)
    stands = f"{index.count} turns" + (f", run {index.run}" if index.run else "")
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        for place in IndexFile(Path(name)).paths:
            place.write_bytes(sealed(index))
        files: Files = {f"{PRIVATE}/{each.name}": (each, "") for each in Path(name).iterdir()}
        files |= _named(state / PRIVATE, index)
        beside = (state / each for each in BESIDE)
        files |= {place.name: (place, "") for place in beside if place.exists()}
        return write_archive(path, msgspec.structs.replace(about, stands=stands), files)


def _index(state: Path) -> Index:
    """The current index, or the one before it if that is damaged."""
    files = IndexFile(state / PRIVATE)
    first, second = (read_sealed(path, Index) for path in files.paths)
    at = newest((first, second))
    index = second if at else first
    if index is None:
        raise StoreError(f"{files.paths[0]}: missing or unreadable: there is nothing to back up")
    return index


def _named(folder: Path, index: Index) -> Files:
    """The files that an index names."""
    files = [index.private, index.earlier]
    for turn in (index.turn, index.last_accepted):
        files += [] if turn is None else [turn.update, turn.private]
    if index.held:
        files.append(StoredFile(model_path(folder, index.held).name, index.held_sha256))
    named = {file.name: file.sha256 for file in files if file is not None}
    return {f"{PRIVATE}/{name}": (folder / name, sha256) for name, sha256 in named.items()}
