"""The versions of a run as an operator sees them: read from its folder, running or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from fededge.errors import StoreError
from fededge_server.store import Change, Progress, Store

__all__ = ["VersionEntry", "find", "list_versions"]


class VersionEntry(Struct, frozen=True):
    """A version: its date in seconds since 1970, its participants, and whether its model is kept.

    `changes` are what an operator changed with it. `reports` are the participants' scalars; those
    of old versions are dropped.
    """

    version: str
    round: int
    sha256: str
    date: float | None
    accuracy: float | None
    participants: int
    seconds: float | None
    restored: str
    kept: bool
    changes: tuple[str, ...] = ()
    reports: dict[str, dict[str, float]] = {}


def list_versions(folder: Path) -> list[VersionEntry]:
    """Every version of a run, oldest first."""
    store = Store(folder)
    if not store.path.exists():
        raise StoreError(f"'{folder}' holds no journal: no run has begun there")
    changes = store.changes()
    return [_entry(store, row, changes) for row in store.versions()]


def find(folder: Path, name: str) -> VersionEntry:
    """The version of this name, which may be shortened, or the newest for an empty one."""
    entries = list_versions(folder)
    if not name:
        return entries[-1]
    found = [entry for entry in entries if entry.version.startswith(name)]
    if len(found) != 1:
        problem = "there is no version" if not found else "several versions begin with"
        raise StoreError(f"{folder}: {problem} '{name}'; `fededge versions list` shows them")
    return found[0]


def _entry(
    store: Store, row: tuple[Progress, dict[str, Any]], changes: list[Change]
) -> VersionEntry:
    progress, more = row
    said = (f"{c.kind}: {c.what}" for c in changes if c.round == progress.rounds_done)
    return VersionEntry(
        version=progress.version,
        round=progress.rounds_done,
        sha256=progress.sha256,
        date=progress.date,
        accuracy=progress.accuracy,
        restored=progress.restored,
        kept=store.model(progress.version).exists(),
        changes=tuple(said),
        **more,
    )
