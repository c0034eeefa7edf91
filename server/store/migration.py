"""The migration of a journal from an older format: a copy is kept, then all steps or none."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from fededge.errors import StoreError
from fededge.storage.files import disk_error, fsync_file, fsync_folder
from fededge_server.store.schema import FORMAT, STEPS

__all__ = ["check_readable", "keep_copy", "sealed_tables", "steps"]


def check_readable(path: Path, found: int) -> None:
    """Refuse the journal of a newer version, and one that no step leads on from."""
    if found > FORMAT:
        raise StoreError(
            f"{path}: this journal has format {found}, written by a newer version of FedEdge; this "
            f"one reads formats up to {FORMAT}: upgrade FedEdge on this machine, or choose another "
            "state folder"
        )
    if any(step not in STEPS for step in range(found, FORMAT)):
        raise StoreError(
            f"{path}: this journal has format {found}, this version of FedEdge takes up formats "
            f"from {min(STEPS)} to {FORMAT}; finish the run with the version of FedEdge that began "
            "it, or choose another state folder"
        )


def sealed_tables(journal: sqlite3.Connection) -> list[str]:
    """The tables that the seal covers, in any format: all but the seal's own."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'seal'"
    return [name for (name,) in journal.execute(tables)]


def keep_copy(journal: sqlite3.Connection, path: Path, marks: Iterable[Path]) -> Path:
    """Copy a journal and its marks into a folder beside it, durably; return the folder.

    An earlier version of FedEdge goes on from there, once the files are put back.
    """
    kept = path.parent / f"before-format-{FORMAT}"
    draft = kept.with_name(f".{kept.name}.new")
    try:
        for old in (draft, kept):  # of a migration that was cut short
            shutil.rmtree(old, ignore_errors=True)
        draft.mkdir()
        with contextlib.closing(sqlite3.connect(draft / path.name)) as copy:
            journal.backup(copy)
        for mark in marks:
            if mark.exists():
                shutil.copyfile(mark, draft / mark.name)
        for written in draft.iterdir():
            fsync_file(written)
        fsync_folder(draft)
        draft.rename(kept)
        fsync_folder(path.parent)
    except OSError as error:
        raise disk_error(kept, error) from None
    return kept


@contextlib.contextmanager
def steps(journal: sqlite3.Connection, found: int) -> Iterator[None]:
    """All steps from a format to this one, and the body of the block, in one transaction."""
    script = "".join(STEPS[step] for step in range(found, FORMAT))
    try:
        journal.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {FORMAT};")
        yield
        journal.commit()
    except BaseException:
        journal.rollback()
        raise
