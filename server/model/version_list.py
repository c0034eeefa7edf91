"""The versions of a run as an operator sees them: read from its folder, running or not."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from fededge.errors import StoreError
from fededge_server.store import Change, Store
from fededge_server.store.records import RoundRecord

__all__ = ["VersionEntry", "find", "list_versions"]


class VersionEntry(Struct, frozen=True):
    """A version: its date in seconds since 1970, its participants, and whether its model is kept.

    `pinned`: it is kept for ever, by order of an operator.

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
    pinned: bool = False
    changes: tuple[str, ...] = ()
    reports: dict[str, dict[str, float]] = {}


def list_versions(folder: Path) -> list[VersionEntry]:
    """Every version of a run, oldest first."""
    store = Store(folder)
    if not store.path.exists():
        raise StoreError(f"'{folder}' holds no journal: no run has begun there")
    changes, hashes = store.changes(), {one.version: one.sha256 for one in store.history()}
    pins = store.pinned()
    return [
        _entry(store, one, hashes[one.version], changes, one.version in pins)
        for one in store.rounds()
    ]


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
    store: Store, one: RoundRecord, sha256: str, changes: list[Change], pinned: bool
) -> VersionEntry:
    said = (f"{c.kind}: {c.what}" for c in changes if c.round == one.rounds_done)
    return VersionEntry(
        version=one.version,
        round=one.rounds_done,
        sha256=sha256,
        date=one.date,
        accuracy=one.accuracy,
        participants=one.participants,
        seconds=one.seconds,
        restored=one.restored,
        kept=store.model(one.version).exists(),
        pinned=pinned,
        changes=tuple(said),
        reports=one.reports,
    )
