"""An operator's request to go back to an earlier version: a file that the coordinator looks for.

It lies in the coordinator's own folder, which nobody else can write. A coordinator that is not
running finds it when it starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from fededge.errors import RefusedError, StoreError
from fededge.storage.files import lock_folder, replace_file
from fededge_server.store import Store

__all__ = ["RollbackRequest", "go_back", "versions"]

MOST_BYTES = 4096
PATIENCE = 60.0
"""Seconds that a coordinator may take: it may be merging."""


class RollbackRequest:
    """The request, and the coordinator's refusal of one that it cannot fulfil."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rollback.json"
        self.refusal = folder / "rollback.refused"

    def make(self, version: str) -> None:
        """Ask for a version; empty: the last good one."""
        self.refusal.unlink(missing_ok=True)
        replace_file(self.path, json.dumps({"version": version}).encode())

    @property
    def open(self) -> bool:
        return self.path.exists()

    def read(self) -> str:
        """The version that is asked for; empty: the last good one."""
        try:
            found = json.loads(self.path.read_bytes()[:MOST_BYTES])["version"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{self.path}: unreadable ({error}); run the command again") from None
        return str(found)

    def fulfil(self) -> None:
        self.path.unlink(missing_ok=True)

    def refuse(self, reason: str) -> None:
        replace_file(self.refusal, reason.encode())
        self.fulfil()

    def refused(self) -> str:
        """The reason why the last request was refused; empty if it was not."""
        try:
            return self.refusal.read_bytes()[:MOST_BYTES].decode("utf-8", "replace")
        except OSError:
            return ""


def versions(folder: Path) -> Iterator[str]:
    """A line for each version of a run."""
    store = _store(folder)
    for progress in store.history():
        score = "" if progress.accuracy is None else f"  accuracy {progress.accuracy:.1%}"
        kept = "" if store.model(progress.version).exists() else "  (its model was pruned)"
        again = f"  went back to {progress.restored}" if progress.restored else ""
        yield f"{progress.version}{score}{again}{kept}"


def go_back(folder: Path, version: str) -> str:
    """Have the coordinator go back, and wait until it has; a sentence on what came of it."""
    store = _store(folder)
    if version and version not in {progress.version for progress in store.history()}:
        raise StoreError(f"{store.path}: there is no version '{version}'; --list shows them")
    if version and not store.model(version).exists():
        raise StoreError(
            f"the model of version {version} was pruned (keep_versions): `fededge versions list` "
            "shows which are there, and `fededge versions pin` keeps one for good"
        )
    request = RollbackRequest(folder)
    request.make(version)
    if not _running(folder):
        return "The coordinator does not run: it goes back when it starts."
    _wait(request)
    now = store.history()[-1]
    return f"The federation goes on from {now.version}, which has the model of {now.restored}."


def _store(folder: Path) -> Store:
    store = Store(folder)
    if not store.path.exists():
        raise StoreError(f"'{folder}' holds no journal: there is no version to go back to")
    return store


def _running(folder: Path) -> bool:
    try:
        lock_folder(folder, "a coordinator").close()
    except StoreError:
        return True
    return False


def _wait(request: RollbackRequest) -> None:
    deadline = time.monotonic() + PATIENCE
    while request.open:
        if time.monotonic() > deadline:
            raise RefusedError(
                f"the coordinator has not gone back within {PATIENCE:.0f} s; it will when its "
                "current work is done: see its log"
            )
        time.sleep(0.1)
    if reason := request.refused():
        raise RefusedError(f"the coordinator did not go back: {reason}")
