"""The coordinator's part of a backup: a snapshot of its journal and the files that it refers to.

The coordinator may run meanwhile. SQLite copies the journal as one transaction saw it; the files
are those that this copy names. If one of them is gone by then, the round went on: try again.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import msgspec

from fededge.errors import StoreError
from fededge.storage.archive import Contents, retried, write_archive
from fededge.storage.files import lock_folder
from fededge_server.store.store import Store

__all__ = ["back_up"]

Files = dict[str, tuple[Path, str]]


def back_up(folder: Path, path: Path, about: Contents) -> Contents:
    """Write a backup of the coordinator's folder; return its contents."""
    store = Store(folder)
    if not store.path.exists():
        raise StoreError(f"'{folder}' holds no journal: there is nothing to back up")
    return retried(lambda: _attempt(store, path, about))


def _attempt(store: Store, path: Path, about: Contents) -> Contents:
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        copy = Store(Path(name))
        _copy_journal(store, copy.path)
        copy.mark_anew()
        files: Files = {each.name: (each, "") for each in (copy.path, *copy.marks)}
        history = copy.history()
        stands = f"version {history[-1].version}" if history else "no version yet"
        files |= _models(store, [progress.version for progress in history])
        files |= _updates(store, copy)
        return write_archive(path, msgspec.structs.replace(about, stands=stands), files)


def _copy_journal(store: Store, target: Path) -> None:
    """Copy the journal; as a plain file if nobody uses it.

    SQLite would leave files beside it, which may not belong to the coordinator's user.
    """
    unused = not store.path.with_name(f"{store.path.name}-wal").exists()
    with contextlib.suppress(StoreError):  # a coordinator has just been started
        if unused:
            with lock_folder(store.folder, "a coordinator"):
                shutil.copyfile(store.path, target)
            return
    store.snapshot(target)


def _models(store: Store, versions: list[str]) -> Files:
    """The newest version's files, and those of earlier ones that were not pruned."""
    places = [place for version in versions for place in store.version_files(version)]
    newest = places[-2:]
    found = (place for place in places if place in newest or place.exists())
    return {f"models/{place.name}": (place, "") for place in found}


def _updates(store: Store, copy: Store) -> Files:
    """The accepted updates of the open round, with their SHA-256."""
    places = {store.update_file(*update[:2]): update[2] for update in copy.spooled()}
    return {
        place.relative_to(store.folder).as_posix(): (place, sha256)
        for place, sha256 in places.items()
    }
