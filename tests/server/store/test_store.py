"""The coordinator's folder: one owner, durable entries, damage found."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from torch import nn

from fededge.errors import ConfigError, StoreError, WireError
from fededge.flat import Layout, Vector, as_numpy
from fededge.wire import chunks, tensors
from fededge.wire.messages import Manifest, Report
from fededge_server.machine.events import Refuse
from fededge_server.machine.facts import Recalled
from fededge_server.store import Change, CheckedUpdate, Progress, Store

LAYOUT = Layout.of(nn.Linear(20, 30))


def read_with(layout: Layout) -> Callable[[BinaryIO], Vector]:
    return lambda file: tensors.decode(layout, file)["model"]


READ = read_with(LAYOUT)


def vector(seed: int) -> Vector:
    return as_numpy(torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed)))


def version(number: int) -> Progress:
    sha256 = LAYOUT.sha256(vector(number))
    return Progress(number, f"{number:06d}-{sha256[:16]}", sha256, None if number == 0 else 0.5)


def advance(store: Store, number: int, **state: Vector) -> Progress:
    progress = version(number)
    store.advance(progress, LAYOUT, vector(number), state, {"a": {"examples": 3.0}}, 1.5)
    return progress


def update_of(device: str) -> bytes:
    return tensors.encode(LAYOUT, {"model": vector(sum(device.encode()))})


def report_of(device: str, of: Progress) -> Report:
    manifest = chunks.manifest(update_of(device), 1024)
    return Report(device, "run", of.version, LAYOUT.hash, manifest, {"examples": 3.0})


def receive(store: Store, device: str, of: Progress) -> Report:
    """An update comes in, is checked and accepted, as the shell does it."""
    data, report = update_of(device), report_of(device, of)
    for offset in (1024, 0, 2048):
        store.keep(of.version, device, offset, data[offset : offset + 1024])
    store.check(of.version, device, report.manifest, READ)
    store.accept(CheckedUpdate(device, report, of.rounds_done, 0.25))
    return report


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "state")
    opened.open()
    yield opened
    opened.close()


def reopened(store: Store) -> Store:
    """The same folder after a kill: nothing was closed in between."""
    store.close()
    store.open()
    return store


# One owner

HOLD = """
import fcntl, sys
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_another_process(lock: Path) -> Iterator[None]:
    command = [sys.executable, "-S", "-c", HOLD, str(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.kill()


def test_a_folder_that_another_process_holds_is_refused_until_that_one_is_gone(
    store: Store,
) -> None:
    store.close()
    with held_by_another_process(store.folder / "lock"):
        with pytest.raises(StoreError) as caught:
            store.open()
        assert str(caught.value) == f"{store.folder}: another coordinator uses this state folder"
    store.open()


def test_who_is_refused_disturbs_nothing(store: Store) -> None:
    first = advance(store, 0)
    receive(store, "a", first)
    with pytest.raises(StoreError, match="another coordinator"):
        Store(store.folder).open()
    assert np.array_equal(store.update(first.version, "a", READ), vector(ord("a")))


def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        Store(tmp_path / "file" / "state").open()


def test_a_journal_that_is_none_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"not a database, but long enough to be read" * 100)
    with pytest.raises(StoreError, match=r"journal\.sqlite: .*not a database"):
        Store(tmp_path).open()
    (tmp_path / "journal.sqlite").unlink()
    (tmp_path / "journal.sqlite").mkdir()
    with pytest.raises(StoreError, match=r"journal\.sqlite: "):
        Store(tmp_path).open()


# The run's facts


def test_a_run_agrees_with_itself_and_a_difference_is_shown(store: Store) -> None:
    store.agree({"method": "fedavg", "seed": "1"})
    reopened(store).agree({"method": "fedavg", "seed": "1"})
    with pytest.raises(ConfigError) as caught:
        store.agree({"method": "fedavg", "seed": "2", "model": "lenet"})
    assert "begun with seed = 1, the configuration now says seed = 2" in str(caught.value)
    assert str(store.folder) in str(caught.value)
    assert store.fact("seed") == "1"
    assert store.fact("model") is None, "a refused agreement leaves nothing behind"


# Versions


def test_a_version_comes_back_after_a_restart(store: Store) -> None:
    assert store.progress() is None
    advance(store, 0)
    second = advance(store, 1, **{"scaffold.c": vector(9)})
    assert reopened(store).progress() == second
    model, state = store.load(second.version, LAYOUT)
    assert np.array_equal(model, vector(1))
    assert state.keys() == {"scaffold.c"}
    assert np.array_equal(state["scaffold.c"], vector(9))
    assert {model.dtype, state["scaffold.c"].dtype} == {np.dtype(np.float32)}


def test_history_is_read_without_taking_the_folder_whatever_its_name(tmp_path: Path) -> None:
    store = Store(tmp_path / "odd ?#% name")
    store.open()
    try:
        entries = [advance(store, number) for number in range(3)]
        assert Store(store.folder).history() == entries
    finally:
        store.close()


def test_a_history_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"journal\.sqlite"):
        Store(tmp_path).history()
    (tmp_path / "journal.sqlite").touch()
    with pytest.raises(StoreError, match=r"journal\.sqlite: it is empty: no run has begun yet"):
        Store(tmp_path).history()


def flip(path: Path, place: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_a_model_or_state_file_is_found(store: Store) -> None:
    progress = advance(store, 0, c=vector(5))
    for name in (f"{progress.version}.safetensors", f"{progress.version}.state.safetensors"):
        flip(store.models / name)
        with pytest.raises(StoreError, match=f"{name}: damaged"):
            store.load(progress.version, LAYOUT)
        flip(store.models / name)
    store.load(progress.version, LAYOUT)


def test_a_torn_missing_or_foreign_model_file_is_said_in_one_sentence(store: Store) -> None:
    progress = advance(store, 0)
    path = store.models / f"{progress.version}.safetensors"
    data = path.read_bytes()
    for content in (b"", data[:100], data[:-1]):
        path.write_bytes(content)
        with pytest.raises(StoreError, match="unreadable"):
            store.load(progress.version, LAYOUT)
    path.unlink()
    with pytest.raises(StoreError, match="unreadable"):
        store.load(progress.version, LAYOUT)
    with pytest.raises(StoreError, match="no version"):
        store.load(version(7).version, LAYOUT)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 20)])
def test_a_torn_or_missing_state_file_is_named(
    store: Store, damage: Callable[[Path], None]
) -> None:
    progress = advance(store, 0, c=vector(5))
    path = store.models / f"{progress.version}.state.safetensors"
    damage(path)
    with pytest.raises(StoreError, match=f"^{path}: .*; restore a backup"):
        store.load(progress.version, LAYOUT)


def test_a_failed_write_of_an_entry_is_a_store_error(store: Store) -> None:
    advance(store, 0)
    with pytest.raises(StoreError, match=r"journal\.sqlite"):
        advance(store, 0)
    assert len(store.history()) == 1


# The spool


def test_an_update_is_durable_only_if_it_is_what_its_report_says(store: Store) -> None:
    of, data = version(0), update_of("a")
    facts = chunks.manifest(data, 1024)
    wrong = Manifest(facts.chunks, 1024, facts.bytes, "0" * 64)
    with pytest.raises(WireError, match="none of its chunks has arrived"):
        store.check(of.version, "a", facts, READ)
    store.keep(of.version, "a", 0, data[:1024])
    with pytest.raises(WireError, match="bytes"):
        store.check(of.version, "a", facts, READ)
    store.keep(of.version, "a", 1024, data[1024:])
    with pytest.raises(WireError, match="SHA-256"):
        store.check(of.version, "a", wrong, READ)
    store.check(of.version, "a", facts, READ)
    with pytest.raises(WireError, match="layout"):
        store.check(of.version, "a", facts, read_with(Layout.of(nn.Linear(1, 1))))
    store.discard(of.version, "a")
    store.discard(of.version, "a")
    with pytest.raises(WireError, match="none of its chunks has arrived"):
        store.check(of.version, "a", facts, READ)


def test_an_update_that_comes_at_once_replaces_what_came_in_chunks(store: Store) -> None:
    of, report = advance(store, 0), report_of("a", version(0))
    longer = update_of("a") + b"?"
    store.expect("a", report)
    store.keep(of.version, "a", len(longer) - 1, b"?")
    store.keep_whole(of.version, "a", memoryview(update_of("a")))
    store.check(of.version, "a", report.manifest, READ)
    assert reopened(store).coming() == {}


def test_an_update_that_is_not_finite_is_refused(store: Store) -> None:
    data = tensors.encode(LAYOUT, {"model": np.full(LAYOUT.size, np.nan, np.float32)})
    store.keep(version(0).version, "a", 0, data)
    with pytest.raises(WireError, match="not finite"):
        store.check(version(0).version, "a", chunks.manifest(data, 1024), READ)


def test_accepted_updates_and_who_was_asked_survive_a_kill(store: Store) -> None:
    of = advance(store, 0)
    store.remember(0, of.version, {"a": 3, "b": 4}, ["a", "b", "c"])
    report = receive(store, "a", of)
    assert reopened(store).recall() == Recalled(
        asked={of.version: {"a": 3, "b": 4}},
        known=frozenset("abc"),
        accepted={"a": report},
        stored=frozenset("a"),
        norms={"a": 0.25},
    )
    assert np.array_equal(store.update(of.version, "a", READ), vector(ord("a")))


def test_which_chunks_of_an_update_have_come_survives_a_kill(store: Store) -> None:
    of, data = advance(store, 0), update_of("b")
    report = report_of("b", of)
    store.expect("b", report)
    for offset in (2048, 0):
        store.keep(of.version, "b", offset, data[offset : offset + 1024])
    assert reopened(store).recall().coming == {"b": (report, frozenset({0, 2}))}
    flip(store.spool / of.version / "b.safetensors")
    assert store.recall().coming == {"b": (report, frozenset({0}))}, "a torn piece comes again"
    store.keep(of.version, "b", 2048, data[2048:])
    store.keep(of.version, "b", 1024, data[1024:2048])
    store.check(of.version, "b", report.manifest, READ)
    store.accept(CheckedUpdate("b", report, 0, 0.5))
    assert reopened(store).recall().coming == {}
    (store.spool / of.version / "b.coming").write_bytes(b"torn")
    assert store.recall().coming == {}


def test_what_belongs_to_an_earlier_round_is_remembered_but_not_kept(store: Store) -> None:
    """Killed after the new version was written and before the spool was cleared."""
    of = advance(store, 0)
    store.remember(0, of.version, {"a": 3}, ["a", "b"])
    report = receive(store, "a", of)
    advance(store, 1)
    memory = reopened(store).recall()
    assert (memory.accepted, memory.stored) == ({"a": report}, frozenset())
    assert memory.recent == {of.version: 0}
    assert list(store.spool.iterdir()) == []


def test_a_damaged_update_is_forgotten_so_that_its_sender_is_asked_again(store: Store) -> None:
    of = advance(store, 0)
    for device in "abc":
        receive(store, device, of)
    flip(store.spool / of.version / "a.safetensors")
    os.truncate(store.spool / of.version / "b.safetensors", 100)
    assert set(reopened(store).recall().accepted) == {"c"}
    with pytest.raises(StoreError, match="unreadable"):
        store.update(of.version, "a", READ)


def test_clearing_an_empty_spool_is_no_error(store: Store) -> None:
    store.clear_spool()


def test_an_empty_folder_has_nothing_to_remember(store: Store) -> None:
    assert store.recall() == Recalled()


def test_a_damaged_entry_is_said_in_one_sentence(store: Store) -> None:
    receive(store, "a", advance(store, 0))
    with sqlite3.connect(store.path) as journal:
        journal.execute("UPDATE accepted SET report = '{'")
    journal.close()
    with pytest.raises(StoreError, match="damaged"):
        store.recall()


# Power cuts


class CutError(OSError):
    """The power went."""


def test_a_power_cut_at_any_moment_leaves_the_old_version_or_the_new(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fsync and rename of a new version is made the last one in turn; a copy of the folder
    is opened each time, and holds one whole version.
    """
    old, new = advance(store, 0), version(1)
    report = receive(store, "a", old)
    seen: set[str] = set()
    cuts = 0
    for cut in range(100):
        left = [cut]
        with monkeypatch.context() as patched:
            for name in ("fsync", "replace"):
                patched.setattr(os, name, counted(getattr(os, name), left))
            try:
                advance(store, 1)
            except StoreError:
                cuts += 1
            else:
                break
        copy = Store(tmp_path / f"copy-{cut}")
        shutil.copytree(store.folder, copy.folder)
        copy.open()
        progress = copy.progress()
        assert progress is not None
        copy.load(progress.version, LAYOUT)
        assert copy.recall().accepted == {"a": report}
        seen.add(progress.version)
        copy.close()
    assert cuts >= 5
    assert seen == {old.version}
    assert reopened(store).progress() == new


def counted(real: Any, left: list[int]) -> Any:
    def call(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise CutError(5, "the power went")
        return real(*arguments)

    return call


def test_a_group_of_updates_costs_one_entry_and_syncs_each_folder_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = advance(store, 0)
    group = [CheckedUpdate(d, report_of(d, of), 0, 0.25) for d in "abc"]
    for device in "abc":
        store.keep_whole(of.version, device, memoryview(update_of(device)))
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    before = store._seal.entries
    store.accept(*group)
    names = [f"{device}.safetensors" for device in "abc"]
    assert synced == [*names, of.version, "spool"]
    assert store._seal.entries == before + 1
    assert reopened(store).recall().stored == {"a", "b", "c"}


def test_a_group_whose_sync_fails_is_not_taken(store: Store) -> None:
    of = advance(store, 0)
    store.keep_whole(of.version, "a", memoryview(update_of("a")))
    with pytest.raises(StoreError):
        store.accept(*(CheckedUpdate(d, report_of(d, of), 0, 0.25) for d in "ab"))
    assert reopened(store).recall().accepted == {}


def test_a_late_update_is_kept_until_the_round_that_takes_it_is_over(store: Store) -> None:
    first = advance(store, 0)
    advance(store, 1)
    data, report = update_of("a"), report_of("a", first)
    store.keep(first.version, "a", 0, data)
    store.check(first.version, "a", report.manifest, READ)
    store.accept(CheckedUpdate("a", report, 1, 0.5))
    memory = reopened(store).recall()
    assert memory.stored == {"a"}
    assert memory.accepted["a"] == report
    assert np.array_equal(store.update(first.version, "a", READ), vector(ord("a")))
    advance(store, 2)
    assert reopened(store).recall().stored == frozenset()


def test_a_refusal_and_a_quarantine_survive_until_a_good_update(store: Store) -> None:
    of = advance(store, 0)
    store.refuse(0, Refuse("a", of.version, "it is not finite", False))
    assert reopened(store).recall().quarantined == frozenset()
    store.refuse(0, Refuse("a", of.version, "it is not finite again", True))
    assert reopened(store).recall().quarantined == {"a"}
    with sqlite3.connect(store.path) as journal:
        reasons = [reason for (reason,) in journal.execute("SELECT reason FROM refused")]
    assert reasons == ["it is not finite", "it is not finite again"]
    receive(store, "a", of)
    assert reopened(store).recall().quarantined == frozenset()


def test_an_accepted_update_that_a_merge_refuses_is_no_longer_accepted(store: Store) -> None:
    of = advance(store, 0)
    receive(store, "a", of)
    kept = receive(store, "b", of)
    store.refuse(0, Refuse("b", "000009-another", "an update of another version", False))
    assert set(store.recall().accepted) == {"a", "b"}
    store.refuse(0, Refuse("a", of.version, "the merge overflows with it", True))
    memory = reopened(store).recall()
    assert memory.accepted == {"b": kept}
    assert memory.norms == {"b": 0.25}
    assert memory.quarantined == {"a"}


# The devices that were asked


def test_who_was_asked_is_known_for_the_last_thousand_versions(store: Store) -> None:
    for number in range(1003):
        store.remember(number, f"v{number}", {"a": number}, ["a"])
    asked = reopened(store).recall().asked
    assert list(asked) == [f"v{number}" for number in range(3, 1003)]
    assert asked["v3"] == {"a": 3}


def test_who_is_asked_later_and_who_is_known_later_is_added(store: Store) -> None:
    store.remember(0, "v0", {"a": 1, "b": 1}, ["a", "b"])
    store.remember(0, "v0", {"b": 3, "c": 2}, ["c"])
    store.remember(0, "v0", {}, ["b", "d"])
    memory = reopened(store).recall()
    assert memory.asked == {"v0": {"a": 1, "b": 3, "c": 2}}, "the last word on each counts"
    assert memory.known == {"a", "b", "c", "d"}


def test_a_version_that_repeats_an_earlier_one_says_which(store: Store) -> None:
    first = advance(store, 0)
    again = Progress(1, f"000001-{first.sha256[:16]}", first.sha256, 0.5, first.version)
    store.advance(again, LAYOUT, vector(0), {}, {}, None)
    assert reopened(store).progress() == again
    assert store.history() == [first, again]
    assert store.changes() == [Change(1, 0.0, "rollback", f"back to {first.version}")]


def test_pruning_leaves_the_last_versions_and_the_history(store: Store) -> None:
    versions = [advance(store, number) for number in range(5)]
    store.prune(2)
    for progress in versions[-2:]:
        store.load(progress.version, LAYOUT)
    for progress in versions[:-2]:
        with pytest.raises(StoreError, match="unreadable"):
            store.load(progress.version, LAYOUT)
    assert [entry.version for entry in store.history()] == [p.version for p in versions]
    assert len(list(store.models.iterdir())) == 4


def test_reports_and_refusals_are_kept_for_the_last_thousand_versions(store: Store) -> None:
    for number in range(1003):
        sha256 = f"{number:064x}"
        of = Progress(number, f"{number:06d}-{sha256[-16:]}", sha256, 0.5)
        store.enter(of, "f" * 64, {"a": {"examples": 3.0}, "b": {"examples": 4.0}}, 1.0)
        store.refuse(number, Refuse("c", of.version, "odd", False))
    rows = store._journal.execute("SELECT reports, participants FROM rounds ORDER BY number")
    kept = [(reports != "{}", participants) for reports, participants in rows]
    assert kept == [(False, 2)] * 3 + [(True, 2)] * 1000
    refused = store._journal.execute("SELECT MIN(number), COUNT(*) FROM refused").fetchone()
    assert refused == (3, 1000)
    reopened(store).verify()


def test_labels_that_differ_are_told_as_labels(store: Store) -> None:
    """The layout follows from them: its hash would tell nobody anything."""
    store.agree({"labels": "cat, dog", "layout": "ab" * 32, "seed": "0"})
    with pytest.raises(ConfigError) as caught:
        store.agree({"labels": "cat, dog, cow", "layout": "cd" * 32, "seed": "0"})
    assert "was begun with labels = cat, dog, the configuration now says labels = cat" in str(
        caught.value
    )
    assert "layout" not in str(caught.value)
