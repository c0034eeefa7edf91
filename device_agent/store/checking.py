"""A check of the agent's files that changes nothing, also while the agent runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fededge.storage.sealed import read_sealed
from fededge_agent.store.index import Index, StoredFile
from fededge_agent.store.index_file import IndexFile, newest
from fededge_agent.store.model_file import is_intact, model_path
from fededge_agent.store.store import PRIVATE
from fededge_agent.store.sweeping import SUFFIXES

__all__ = ["damage"]


def damage(state: Path) -> list[tuple[str, bool]]:
    """The damage below a state folder, each with True if the agent repairs it by itself."""
    folder = state / PRIVATE
    found = list(_damage(folder))
    # A running agent may have replaced its files after the index was read: look again.
    return list(_damage(folder)) if found else found


def _damage(folder: Path) -> Iterator[tuple[str, bool]]:
    files = IndexFile(folder)
    first, second = (read_sealed(path, Index) for path in files.paths)
    at = newest((first, second))
    if at is None:
        if _begun(folder):
            yield f"{files.paths[0]}: unreadable, and so is the one before", False
        return
    if first is None or second is None:
        yield f"{files.paths[1 - at]}: missing or damaged", True
    yield from _files(folder, first if at == 0 else second)


def _begun(folder: Path) -> bool:
    ours = SUFFIXES - {".new"}
    return folder.is_dir() and any(
        path.suffix in ours or path.match("agent*.json") for path in folder.iterdir()
    )


def _files(folder: Path, index: Index | None) -> Iterator[tuple[str, bool]]:
    assert index is not None
    if index.private is not None and not is_intact(folder, index.private):
        spare = index.earlier is not None and is_intact(folder, index.earlier)
        yield f"{folder / index.private.name}: the private state is damaged", spare
    again = []
    if index.held:
        again.append(StoredFile(model_path(folder, index.held).name, index.held_sha256))
    if index.turn is not None:
        again.append(index.turn.update)
    for file in again:
        if not is_intact(folder, file):
            yield f"{folder / file.name}: damaged", True
