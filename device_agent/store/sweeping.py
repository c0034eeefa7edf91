"""Sweeping the agent's folder: files that no index names any more are removed."""

from __future__ import annotations

from pathlib import Path

from fededge_agent.store.index import Index
from fededge_agent.store.model_file import model_path

__all__ = ["SUFFIXES", "private_names", "sweep"]

SUFFIXES = frozenset({".update", ".accepted", ".private", ".safetensors", ".new"})
"""Files that are removed once the index does not name them."""


def private_names(index: Index) -> set[str]:
    """The files of an index that hold private state."""
    outgoing = index.turn or index.last_accepted
    files = [index.private, index.earlier, outgoing.private if outgoing else None]
    return {file.name for file in files if file is not None}


def sweep(folder: Path, index: Index, spare: Index, draft: str) -> None:
    """Remove files of old turns and old versions.

    Args:
        folder: the agent's.
        index: keeps all files that it names.
        spare: keeps its private state; all else can be had again.
        draft: how the names of files begin that are being written; empty if there are none.
    """
    named = private_names(index) | private_names(spare)
    outgoing = index.turn or index.last_accepted
    if outgoing is not None:
        named.add(outgoing.update.name)
    if index.held:
        named.add(model_path(folder, index.held).name)
    for path in folder.iterdir():
        drafted = bool(draft) and path.name.lstrip(".").startswith(draft)
        if path.suffix in SUFFIXES and path.name not in named and not drafted:
            path.unlink(missing_ok=True)
