"""A journal of an older format is migrated at once or not at all; a newer one is refused."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from fededge.errors import StoreError
from fededge_server.store import Progress, Store, migration
from fededge_server.store.schema import FORMAT, STEPS

ASKED_BY_VERSION = """
BEGIN;
DROP TABLE orders;
DROP TABLE standings;
DROP TABLE settings;
DROP TABLE asked;
CREATE TABLE asked (version TEXT PRIMARY KEY, number INTEGER NOT NULL, devices TEXT NOT NULL);
INSERT INTO asked VALUES ('v1', 1, '{"b": 3}'), ('v0', 0, '{"a": 1, "b": 2}');
ALTER TABLE rounds DROP COLUMN date;
ALTER TABLE rounds DROP COLUMN participants;
DROP TABLE changes;
PRAGMA user_version = 2;
"""


@pytest.fixture
def older(tmp_path: Path) -> Store:
    """The store of a journal as format 2 had it."""
    store = Store(tmp_path / "state")
    store.open()
    store.enter(Progress(0, "v0", "0" * 64, None), "f" * 64, {}, None)
    store.enter(Progress(1, "v1", "1" * 64, 0.5), "f" * 64, {"a": {}, "b": {}}, 2.0)
    store.remember(1, "v1", {}, ["a", "b"])
    entries = store._seal.entries
    store._journal.executescript(ASKED_BY_VERSION)
    store._seal = store._sum(store._journal)._replace(entries=entries)
    store._write_seal()
    store._journal.commit()
    store._mark()
    store.close()
    return store


def format_on_disk(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as journal:
        return int(journal.execute("PRAGMA user_version").fetchone()[0])


def test_every_older_format_but_the_first_has_its_step() -> None:
    assert [*STEPS] == [*range(min(STEPS), FORMAT)]


def test_an_older_journal_is_migrated_and_keeps_what_it_knew(older: Store) -> None:
    older.open()
    recalled = older.recall()
    assert recalled.asked == {"v0": {"a": 1, "b": 2}, "v1": {"b": 3}}
    assert recalled.known == {"a", "b"}
    assert [(entry.version, entry.date) for entry in older.history()] == [
        ("v0", None),
        ("v1", None),
    ]
    taken = older._journal.execute("SELECT participants FROM rounds ORDER BY number").fetchall()
    assert taken == [(0,), (2,)]
    assert older.changes() == []
    older.close()
    assert format_on_disk(older.path) == FORMAT
    older.verify()


def test_the_copy_of_an_older_journal_can_be_put_back(older: Store) -> None:
    older.open()
    older.note("issued", "7")
    older.close()
    kept = older.folder / f"before-format-{FORMAT}"
    assert format_on_disk(kept / older.path.name) == 2
    for path in kept.iterdir():
        shutil.copyfile(path, older.folder / path.name)
    for suffix in ("-wal", "-shm"):
        older.path.with_name(older.path.name + suffix).unlink(missing_ok=True)
    older.open()
    assert older.fact("issued") is None, "as it was before the migration"
    older.close()


def test_a_journal_that_was_changed_is_refused_before_it_is_migrated(older: Store) -> None:
    with contextlib.closing(sqlite3.connect(older.path)) as journal, journal:
        journal.execute("UPDATE asked SET number = 5 WHERE number = 1")
    with pytest.raises(StoreError, match="an entry is not what was written"):
        older.open()
    assert format_on_disk(older.path) == 2


def test_a_migration_that_is_cut_short_leaves_the_older_journal(
    older: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(STEPS, 2, f"{STEPS[2]} INSERT INTO nowhere VALUES (1);")
        with pytest.raises(StoreError, match="no such table: nowhere"):
            older.open()
    older.close()
    assert format_on_disk(older.path) == 2
    older.open()
    assert older.recall().asked["v1"] == {"b": 3}
    older.close()


def test_without_space_for_the_copy_nothing_is_migrated(
    older: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(migration, "fsync_file", full)
    with pytest.raises(StoreError, match=r"before-format-\d+: the disk is full"):
        older.open()
    assert format_on_disk(older.path) == 2


def test_a_command_that_only_reads_says_who_migrates(older: Store) -> None:
    said = f"has format 2, and is read as format {FORMAT}; start the coordinator, which migrates it"
    with pytest.raises(StoreError, match=said):
        older.history()
    older.verify()
    assert format_on_disk(older.path) == 2


def test_the_journal_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    store.note("issued", "1")
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as journal:
        journal.execute(f"PRAGMA user_version = {FORMAT + 1}")
    for use in (store.open, store.history, store.verify):
        with pytest.raises(StoreError) as caught:
            use()
        assert str(caught.value) == (
            f"{store.path}: this journal has format {FORMAT + 1}, written by a newer version of "
            f"FedEdge; this one reads formats up to {FORMAT}: upgrade FedEdge on this machine, or "
            "choose another state folder"
        )
    assert format_on_disk(store.path) == FORMAT + 1


def test_a_format_that_no_step_leads_on_from_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    store.note("issued", "1")
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as journal:
        journal.execute("PRAGMA user_version = 0")
    with pytest.raises(StoreError, match=r"has format 1, .* finish the run with the version"):
        store.open()
