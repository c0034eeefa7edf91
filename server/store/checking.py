"""A check of the coordinator's files that changes nothing, also while the coordinator runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fededge.errors import StoreError
from fededge_server.store.store import Progress, Store

__all__ = ["damage"]


def damage(folder: Path) -> Iterator[tuple[str, bool]]:
    """The damage in a state folder, each with True if the coordinator repairs it by itself."""
    store = Store(folder)
    try:
        newest = _newest(store)
    except StoreError as error:
        yield str(error), False
        return
    for progress in newest:
        if not store.model(progress.version).exists():
            yield f"{store.model(progress.version)}: the newest version has no model file", False
    missing = [path.name for path in store.marks if newest and not path.exists()]
    if missing:
        yield f"{folder}: {', '.join(missing)} is missing beside the journal", True


def _newest(store: Store) -> list[Progress]:
    """Check the journal; its newest version, if there is one.

    SQLite leaves two files beside a journal that nobody uses. So that one is read as a copy.
    """
    if not store.path.exists() or store.path.with_name(f"{store.path.name}-wal").exists():
        store.verify()
        return store.history()[-1:] if store.path.exists() else []
    with tempfile.TemporaryDirectory() as name:
        copy = Store(Path(name))
        for path in (store.path, *store.marks):
            if path.exists():
                shutil.copyfile(path, copy.folder / path.name)
        try:
            copy.verify()
            return copy.history()[-1:]
        except StoreError as error:
            raise StoreError(str(error).replace(name, str(store.folder))) from None
