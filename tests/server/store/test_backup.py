"""A coordinator's backup: consistent while the coordinator runs, and taken up anywhere."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fededge.errors import StoreError
from fededge.storage import archive
from fededge.storage.archive import Contents, VanishedError
from fededge_server.machine.fleet.orders import PinOrder
from fededge_server.store import CheckedUpdate, Progress, Store
from fededge_server.store.backup import back_up
from fededge_server.store.checking import damage
from tests.server.store.test_store import LAYOUT, advance, report_of, update_of

ABOUT = Contents("coordinator", "gates", "", "0.1.0", "2026-01-01T00:00:00+00:00", "")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "state")
    made.open()
    yield made
    made.close()


def accept(store: Store, device: str, of: Progress) -> None:
    store.keep_whole(of.version, device, memoryview(update_of(device)))
    store.accept(CheckedUpdate(device, report_of(device, of), of.rounds_done, 1.5))


def restored(path: Path, folder: Path) -> Store:
    archive.restore(path, folder, archive.read_contents(path), damage)
    store = Store(folder)
    store.open()
    return store


def test_a_backup_in_mid_round_has_all_that_was_accepted(store: Store, tmp_path: Path) -> None:
    advance(store, 0)
    current = advance(store, 1)
    store.remember(1, current.version, {"a": 3, "b": 3, "c": 3}, ["a", "b", "c"])
    accept(store, "a", current)
    accept(store, "b", current)
    store.keep(current.version, "c", 0, b"half of an update")
    before = store.recall()
    made = back_up(store.folder, tmp_path / "backup", ABOUT)
    assert made.stands == f"version {current.version}"
    accept(store, "c", current)
    advance(store, 2)
    store.clear_spool()
    other = restored(tmp_path / "backup", tmp_path / "other" / "place")
    assert other.recall() == before
    assert other.progress() == current
    for device in ("a", "b"):
        found = other.update(current.version, device, lambda file: file.read())
        assert found == update_of(device)
    other.load(current.version, LAYOUT)
    advance(other, 2)
    other.close()
    assert store.progress() is not None, "the coordinator went on undisturbed"


@pytest.mark.parametrize("killed", [True, False])
def test_the_folder_of_a_coordinator_that_does_not_run(
    store: Store, tmp_path: Path, killed: bool
) -> None:
    current = advance(store, 0)
    accept(store, "a", current)
    if killed:  # a copy as kill -9 leaves it: with its WAL
        folder = tmp_path / "killed"
        shutil.copytree(store.folder, folder)
    else:
        store.close()
        folder = store.folder
        files = sorted(os.listdir(folder))
    back_up(folder, tmp_path / "backup", ABOUT)
    if not killed:
        assert sorted(os.listdir(folder)) == files, "nothing is left beside the journal"
    other = restored(tmp_path / "backup", tmp_path / "other")
    assert other.progress() == current
    assert [*other.recall().stored] == ["a"]
    other.close()


def test_a_pinned_version_is_in_the_backup_and_stays_pinned(store: Store, tmp_path: Path) -> None:
    pinned = advance(store, 0)
    store.order(PinOrder(pinned.version), 1e9)
    for number in range(1, 5):
        advance(store, number)
    store.prune(2)
    back_up(store.folder, tmp_path / "backup", ABOUT)
    other = restored(tmp_path / "backup", tmp_path / "other")
    assert other.pinned() == {pinned.version}
    other.prune(1)
    other.load(pinned.version, LAYOUT)
    assert [other.kept(progress.version) for progress in other.history()] == [
        *(True, False, False, False, True)
    ]
    other.close()


def test_a_folder_without_a_run_has_no_backup(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no journal: there is nothing to back up"):
        back_up(tmp_path, tmp_path / "backup", ABOUT)
    assert not (tmp_path / "backup").exists()


def test_a_run_without_a_version_is_backed_up(store: Store, tmp_path: Path) -> None:
    store.note("issued", "7")
    assert back_up(store.folder, tmp_path / "backup", ABOUT).stands == "no version yet"
    other = restored(tmp_path / "backup", tmp_path / "other")
    assert other.fact("issued") == "7"
    other.close()


def test_an_update_that_is_not_what_was_accepted_is_not_backed_up(
    store: Store, tmp_path: Path
) -> None:
    current = advance(store, 0)
    accept(store, "a", current)
    store.update_file(current.version, "a").write_bytes(b"something else")
    with pytest.raises(VanishedError, match="damaged, or it changes too quickly"):
        back_up(store.folder, tmp_path / "backup", ABOUT)


def test_backups_of_a_coordinator_that_works_are_consistent(store: Store, tmp_path: Path) -> None:
    """Rounds go by as fast as they can; each backup is one moment of them."""
    stop, made = threading.Event(), 0

    def work() -> None:
        own = Store(store.folder)
        own.open_journal()
        number = 1
        while not stop.is_set() and number < 500:
            current = advance(own, number)
            for device in ("a", "b"):
                accept(own, device, current)
            own.clear_spool(keep=[current.version])
            own.prune(3)
            number += 1
        own.close_journal()

    advance(store, 0)
    store.close_journal()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        while made < 5:
            try:
                back_up(store.folder, tmp_path / "backup", ABOUT)
            except VanishedError:
                continue
            made += 1
            other = restored(tmp_path / "backup", tmp_path / f"other-{made}")
            progress = other.progress()
            assert progress is not None
            other.load(progress.version, LAYOUT)
            for device in other.recall().stored:
                found = other.update(progress.version, device, lambda file: file.read())
                assert found == update_of(device)
            other.close()
    finally:
        stop.set()
        thread.join()
