"""The journal loses nothing silently: whatever happens to its files is noticed, or changes nothing.

The folder is that of a coordinator that was killed: some of it is in the database, some in the WAL.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fededge.errors import DiskFullError, StoreError
from fededge.wire import chunks
from fededge.wire.messages import Report
from fededge_server.machine.events import Refuse
from fededge_server.machine.rounds.rollout import Plan
from fededge_server.store import CheckedUpdate, Progress, Store
from fededge_server.store import journal as journal_module
from fededge_server.store.tables import JournalTables

UPDATE = b"an update of a device " * 100
JOURNAL, WAL = "journal.sqlite", "journal.sqlite-wal"
SQLITE = (JOURNAL, WAL)
MARKS = ("run.json", "run.latest")
FLIPS = 120
LAST = 42
"""The round that is open."""


def version(number: int) -> Progress:
    sha256 = f"{number:064x}"
    return Progress(number, f"{number:06d}-{sha256[-16:]}", sha256, 0.5 + number / 1000)


def report_of(device: str, of: Progress) -> Report:
    facts = chunks.manifest(UPDATE, 1024)
    return Report(device, "r1", of.version, "0" * 64, facts, {"examples": 3.0})


def accept(store: Store, device: str, of: Progress) -> None:
    report = report_of(device, of)
    store.keep(of.version, device, 0, UPDATE)
    store.check(of.version, device, report.manifest, lambda file: np.zeros(1, np.float32))
    store.accept(CheckedUpdate(device, report, of.rounds_done, 1.5))


def play(store: Store, first: int, last: int) -> None:
    """Some rounds: each of them with every kind of entry but changes, which are rarer.

    The last one is open at the end.
    """
    devices = [f"device-{i}" for i in range(4)]
    for number in range(first, last):
        of = version(number)
        reports = {device: {"examples": 10.0 * number} for device in devices}
        store.enter(of, "f" * 64, reports, 2.5)
        store.sync_marks()
        store.clear_spool()
        store.remember(number, of.version, dict.fromkeys(devices, 10 + number), devices)
        for device in devices[:3]:
            accept(store, device, of)
        store.refuse(number, Refuse(devices[3], of.version, f"round {number}", number % 2 == 0))
        store.keep_plan(Plan.initial(number))
        store.note("issued", str(1000 + number))
        if number % 9 == 0:
            what = ", ".join(f"setting-{i} = {number}" for i in range(40))
            with store._transaction():
                store._add("changes", None, number, 1e9 + number, "settings", what)


def content(store: Store) -> object:
    """All that a coordinator reads at its start."""
    with store._transaction() as journal:
        facts = dict(journal.execute("SELECT name, value FROM facts"))
        refused = journal.execute("SELECT * FROM refused").fetchall()
    told = (store.progress(), store.history(), store.recall(), store.changes())
    return *told, facts, store.plan(), refused


@contextlib.contextmanager
def without_syncs() -> Iterator[None]:
    """Nothing here is about power cuts: syncs would only take time."""
    settings = journal_module.SETTINGS.replace("FULL", "OFF")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda handle: None)
        patched.setattr(journal_module, "SETTINGS", settings)
        yield


@pytest.fixture
def quick() -> Iterator[None]:
    with without_syncs():
        yield


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """The folder of a coordinator that was killed, and what it knew."""
    folder = tmp_path_factory.mktemp("image")
    store = Store(folder / "state")
    with without_syncs():
        store.open()
        store.agree({"run": "r1", "method": "fedavg", "seed": "1"})
        play(store, 0, 40)
        store._journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        play(store, 40, LAST + 1)
        shutil.copytree(store.folder, folder / "killed")
        known = content(store)
        store.close()
    assert all((folder / "killed" / name).stat().st_size > 30_000 for name in SQLITE)
    return folder / "killed", known


@pytest.fixture
def killed(tmp_path: Path, image: tuple[Path, object], quick: None) -> tuple[Path, object]:
    """A copy of it for each test."""
    folder, known = image
    shutil.copytree(folder, tmp_path / "killed")
    return tmp_path / "killed", known


def outcome(image: Path, known: object, damage: Callable[[Path], object]) -> str:
    """A coordinator's error about a folder that was damaged so; empty if it lost nothing."""
    folder = image.parent / "copy"
    shutil.copytree(image, folder)
    damage(folder)
    left = {name: (folder / name).read_bytes() for name in SQLITE if (folder / name).exists()}
    store = Store(folder)
    try:
        store.open()
    except StoreError as error:
        now = {name: (folder / name).read_bytes() for name in left}
        assert now == left, "what is refused is left as it was, for whoever can mend it"
        return str(error)
    else:
        assert content(store) == known, "something was lost without a word"
        store.close()
        return ""
    finally:
        shutil.rmtree(folder)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flipping(name: str, bit: int) -> Callable[[Path], None]:
    return lambda folder: flip(folder / name, bit)


def shortening(name: str, length: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, length)


# Damage


def test_the_folder_of_a_killed_coordinator_is_taken_up_as_it_was(
    killed: tuple[Path, object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert outcome(*killed, lambda folder: None) == ""
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("name", "closed", "least"),
    [(JOURNAL, False, FLIPS // 12), (JOURNAL, True, FLIPS // 12), (WAL, False, FLIPS)],
)
def test_a_flipped_bit_is_noticed_or_changes_nothing(
    killed: tuple[Path, object], name: str, closed: bool, least: int
) -> None:
    """The rest of the flips in the database lie where nothing is written, or in a page that the
    WAL has too; a coordinator that was closed has left none.
    """
    if closed:
        store = Store(killed[0])
        store.open()
        store.close()
    bits = 8 * (killed[0] / name).stat().st_size
    header = range(0, 800, 20) if closed else ()
    places = [*random.Random(name).sample(range(bits), FLIPS - len(header)), *header]
    said = [outcome(*killed, flipping(name, bit)) for bit in places]
    noticed = [text for text in said if text]
    assert all("/journal.sqlite: " in text for text in noticed)
    assert not any("\n" in text for text in noticed)
    assert len(noticed) >= least


@pytest.mark.parametrize("name", SQLITE)
def test_a_shortened_file_is_noticed_or_changes_nothing(
    killed: tuple[Path, object], name: str
) -> None:
    rng = random.Random(name)
    size = (killed[0] / name).stat().st_size
    for length in (0, 1, 31, 100, size // 2, size - 4096, size - 1, *rng.sample(range(size), 20)):
        said = outcome(*killed, shortening(name, length))
        if said:
            assert "/journal.sqlite: " in said
            assert "restore a backup of the whole folder, or remove " in said
        else:
            assert name == JOURNAL, f"{length} of {size} bytes are left"
            assert length >= size - 4096, "a page that is in the WAL too"


def test_a_wal_that_is_gone_is_told_with_the_rounds_that_are_missing(
    killed: tuple[Path, object],
) -> None:
    said = outcome(*killed, lambda folder: (folder / WAL).unlink())
    assert "it ends after round 39, run.json tells of round 42" in said
    assert "it or journal.sqlite-wal was removed, shortened or damaged" in said


@pytest.mark.parametrize("rest", [(), (WAL,), (WAL, "journal.sqlite-shm", "run.latest")])
def test_a_journal_that_is_gone_is_not_taken_for_a_new_run(
    killed: tuple[Path, object], rest: tuple[str, ...]
) -> None:
    def remove(folder: Path) -> None:
        for name in (JOURNAL, *rest):
            (folder / name).unlink()

    said = outcome(*killed, remove)
    assert "/journal.sqlite: missing or empty, but run.json tells that a run was begun" in said


def test_a_whole_journal_of_earlier_is_noticed(killed: tuple[Path, object]) -> None:
    """A database that was put back from a backup, and the rest was not."""

    def put_back(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / JOURNAL)) as journal:
            journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(killed[0] / JOURNAL, folder / JOURNAL)

    assert "it ends after round 39" in outcome(*killed, put_back)


def test_the_journal_of_another_run_is_noticed(killed: tuple[Path, object], tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.open()
    other.agree({"run": "r2"})
    play(other, 0, LAST + 3)
    other.close()

    def exchange(folder: Path) -> None:
        shutil.copy(other.path, folder / JOURNAL)
        (folder / WAL).unlink()

    assert "it is not the journal that run.json tells of" in outcome(*killed, exchange)


CHANGES = [
    "UPDATE facts SET value = 'x' WHERE name = 'seed'",
    "DELETE FROM facts WHERE name = 'seed'",
    "INSERT INTO facts VALUES ('another', '1')",
    "UPDATE rounds SET accuracy = 0.75 WHERE number = 2",
    "UPDATE rounds SET restored = 'x' WHERE number = 2",
    "DELETE FROM rounds WHERE number = 3",
    "UPDATE asked SET devices = '{}' WHERE number = 42",
    "DELETE FROM known WHERE device = 'device-1'",
    "UPDATE accepted SET norm = 1.25 WHERE device = 'device-1'",
    "DELETE FROM accepted WHERE device = 'device-1'",
    "UPDATE refused SET reason = '' WHERE number = 0",
    "UPDATE refused SET entry = 100 WHERE entry = 1",
    "DELETE FROM quarantined",
    "UPDATE rollout SET plan = '{}'",
    "UPDATE seal SET entries = entries + 1",
    "UPDATE seal SET entries = 'x'",
    "DELETE FROM seal",
    "ALTER TABLE rollout RENAME COLUMN plan TO plant",
    "DROP TABLE quarantined",
    "CREATE TABLE another (x)",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_row_that_somebody_else_has_changed_is_noticed(
    killed: tuple[Path, object], change: str
) -> None:
    def edit(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / JOURNAL)) as journal, journal:
            assert journal.execute(change).rowcount != 0

    assert "/journal.sqlite: " in outcome(*killed, edit)


@pytest.mark.parametrize("name", ["journal.sqlite-shm", *MARKS])
def test_what_is_no_entry_is_mended(
    killed: tuple[Path, object], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One mark stands for the other; SQLite makes its index of the WAL anew."""
    bits = 8 * (killed[0] / name).stat().st_size
    rng = random.Random(name)
    damages: list[Callable[[Path], object]] = [
        lambda folder: (folder / name).unlink(),
        shortening(name, 20),
        *(flipping(name, bit) for bit in rng.sample(range(bits), 30)),
    ]
    for damage in damages:
        caplog.clear()
        assert outcome(*killed, damage) == ""
        mended = [text for text in caplog.messages if f"/{name}: missing or damaged" in text]
        assert len(mended) == (name in MARKS)


def test_without_any_mark_a_journal_is_refused(killed: tuple[Path, object]) -> None:
    def remove(folder: Path) -> None:
        (folder / "run.json").unlink()
        (folder / "run.latest").write_bytes(b"")

    said = outcome(*killed, remove)
    assert "/run.json: missing or damaged, and so is run.latest" in said
    assert "with 42 rounds" in said


def test_a_damaged_update_in_the_spool_is_asked_for_again(
    killed: tuple[Path, object], caplog: pytest.LogCaptureFixture
) -> None:
    image, _ = killed
    path = image / "spool" / version(LAST).version / "device-1.safetensors"
    flip(path, 100)
    store = Store(image)
    store.open()
    assert "device-1" not in store.recall().accepted
    assert caplog.messages == [f"{path}: missing or damaged; device-1 is asked for it again"]
    store.close()
    store.open()
    store.close()


def test_what_was_reported_of_an_update_on_its_way_is_not_taken_from_a_damaged_file(
    killed: tuple[Path, object],
) -> None:
    """A flipped digit of its examples would be summed with a wrong weight."""
    store, of = Store(killed[0]), version(LAST)
    store.open()
    report = report_of("device-3", of)
    store.expect("device-3", report)
    store.keep(of.version, "device-3", 0, UPDATE[:1024])
    assert store.recall().coming == {"device-3": (report, frozenset({0}))}
    path = store.spool / of.version / "device-3.coming"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"examples":3.0', b'"examples":7.0'))
    assert path.read_bytes() != whole
    assert store.recall().coming == {}
    store.close()


# The moments between


class CutError(BaseException):
    """The process is killed, or the power goes."""


def test_a_kill_at_any_moment_raises_no_alarm_and_loses_nothing(
    killed: tuple[Path, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of a mark is the last one in turn: then the journal is ahead of it."""
    ahead = 0
    for last in range(100):
        store = Store(tmp_path / f"cut-{last}")
        shutil.copytree(killed[0], store.folder)
        store.open()
        with monkeypatch.context() as patched:
            for name in ("pwrite", "replace"):
                patched.setattr(os, name, cut_short(getattr(os, name), last))
            with contextlib.suppress(CutError):
                play(store, LAST + 1, LAST + 3)
                break
        again = Store(tmp_path / f"copy-{last}")
        shutil.copytree(store.folder, again.folder)
        again.open()
        assert content(again) == content(store)
        marked = store._marks.latest.read_bytes()
        ahead += marked != again._marks.latest.read_bytes()
        again.close()
        store.close()
    store.close()
    assert last > 20
    assert ahead > 10


def test_a_kill_while_the_journal_is_made_raises_no_alarm(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for last in range(100):
        store = Store(tmp_path / str(last))
        with monkeypatch.context() as patched:
            for name in ("pwrite", "replace", "fsync"):
                patched.setattr(os, name, cut_short(getattr(os, name), last))
            with contextlib.suppress(CutError):
                store.open()
                break
        store.close()
        gc.collect()  # what else a killed process leaves
        store.open()
        store.agree({"run": "r1"})
        store.close()
    store.close()
    assert last > 3


def cut_short(real: Callable[..., object], last: int) -> Callable[..., object]:
    left = iter(range(last))

    def call(*arguments: object) -> object:
        if next(left, None) is None:
            raise CutError
        return real(*arguments)

    return call


def test_an_older_latest_mark_is_no_alarm(killed: tuple[Path, object], tmp_path: Path) -> None:
    """It is not synced: after a power cut it may be any earlier one, or none."""
    store = Store(killed[0])
    store.open()
    early = store._marks.latest.read_bytes()
    play(store, LAST + 1, LAST + 2)
    known = content(store)
    for left in (early, b"", b"\0" * 512):
        folder = tmp_path / "cut"
        shutil.copytree(store.folder, folder)
        (folder / "run.latest").write_bytes(left)
        again = Store(folder)
        again.open()
        assert content(again) == known
        again.close()
        shutil.rmtree(folder)
    store.close()


def test_a_mark_that_cannot_be_written_undoes_nothing_and_is_written_later(
    killed: tuple[Path, object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(killed[0])
    store.open()
    before = store._marks.path.read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        store.enter(version(LAST + 1), "f" * 64, {}, None)
        store.sync_marks()
    assert "run.json: the disk is full" in caplog.text
    assert store.progress() == version(LAST + 1)
    assert store._marks.path.read_bytes() == before
    store.sync_marks()
    assert store._marks.path.read_bytes() != before
    store.close()


def half_a_transaction(store: Store) -> None:
    with store._transaction():
        store._put("facts", "name", "seed", "2")
        raise sqlite3.OperationalError("database or disk is full")


def test_a_transaction_that_fails_leaves_the_seal_as_it_was(killed: tuple[Path, object]) -> None:
    store = Store(killed[0])
    store.open()
    before = store._seal
    with pytest.raises(StoreError):
        store.enter(version(LAST), "f" * 64, {}, None)
    with pytest.raises(DiskFullError):
        half_a_transaction(store)
    assert store._seal == before
    store.note("seed", "2")
    store.close()
    store.open()
    assert store.fact("seed") == "2"
    store.close()


def test_no_entry_of_a_round_waits_for_the_sync_of_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is synced once, from time to time; SQLite's own syncs are not counted here."""
    store = Store(tmp_path)
    store.open()
    store.agree({"run": "r1"})
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    of = version(0)
    store.enter(of, "f" * 64, {}, None)
    store.remember(0, of.version, {"a": 1}, ["a"])
    JournalTables.accept(store, CheckedUpdate("a", report_of("a", of), 0, 1.0))
    store.refuse(0, Refuse("b", of.version, "no", True))
    store.note("issued", "1")
    assert synced == []
    for _ in range(2):
        store.sync_marks()
        assert len(synced) == 2
    assert store._marks.path.read_bytes().strip() == store._marks.latest.read_bytes().strip()
    store.close()
