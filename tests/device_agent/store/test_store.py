"""The agent's folder: private, whole after any power cut, damage found."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from torch import nn

from fededge.errors import DiskFullError, MethodError, StoreError, WireError
from fededge.flat import Layout, Vector
from fededge.method.private import Private, Value
from fededge.wire import chunks, tensors
from fededge.wire.chunks import Payload
from fededge.wire.messages import Report
from fededge_agent.store import AgentStore, TrainedTurn
from fededge_agent.store.index_file import IndexFile
from fededge_agent.trainer.turn_files import TurnFiles

LAYOUT = Layout.of(nn.Linear(20, 30))


def read(file: BinaryIO) -> dict[str, Vector]:
    return tensors.decode(LAYOUT, file)


V0, V1 = "000000-0123456789abcdef", "000001-fedcba9876543210"


def model(seed: int) -> bytes:
    vector = np.random.default_rng(seed).standard_normal(LAYOUT.size, np.float32)
    return tensors.encode(LAYOUT, {"model": vector})


def report(version: str = V0, update: bytes = b"update", run: str = "run") -> Report:
    manifest = chunks.manifest(update, 1024)
    return Report("box", run, version, LAYOUT.hash, manifest, {"examples": 3.0})


def fetch(store: AgentStore, version: str, data: bytes) -> None:
    facts = chunks.manifest(data, 1024)
    store.expect(version, facts)
    for index in reversed(range(facts.chunks)):
        store.keep(version, index * 1024, data[index * 1024 :][:1024])
    store.check_model(version, facts, read)


def save(store: AgentStore, now: float, later: float, version: str = V0) -> None:
    keep(store, Private({"layer.x": now}), Private({"layer.x": later}), version)


def keep(store: AgentStore, now: Private, later: Private, version: str = V0) -> None:
    """A turn, as the agent saves it: file by file."""
    files = TurnFiles(store.folder, store.begin_turn())
    at_once = files.write_private(now)
    update, payload = files.write_update(lambda file: file.write(b"update"), 1024)
    assert payload.chunk(0).endswith(b"update")
    assert payload == Payload.of(payload.source, 1024)
    path = store.folder / update.name
    assert path.read_bytes() == b"update"
    accepted = files.write_accepted(later)
    store.save_turn(TrainedTurn(report(version), update, at_once, accepted))


def private(store: AgentStore, run: str = "") -> Private:
    return TurnFiles(store.folder, store.index).private(run)


def held_model(store: AgentStore, version: str) -> Vector:
    return TurnFiles(store.folder, store.index).model(version, read)["model"]


def sent(store: AgentStore) -> bytes | None:
    """The data of the update's only chunk."""
    payload = store.update()
    return None if payload is None else payload.chunk(0)[chunks.HEADER.size :]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AgentStore]:
    opened = AgentStore(tmp_path / "state")
    opened.open()
    yield opened
    opened.close()


def reopened(store: AgentStore) -> AgentStore:
    store.close()
    store._index = IndexFile(store.folder)
    store.open()
    return store


# The folder


def test_a_folder_that_is_in_use_is_refused_until_it_is_free(
    store: AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock belongs to the opened file, so a second one stands for another process."""
    monkeypatch.setattr("fededge_agent.store.folder_lock.LOCK_WAIT", 0.1)
    with pytest.raises(StoreError) as caught:
        AgentStore(store.folder.parent).open()
    assert str(caught.value) == f"{store.folder}: another agent uses this state folder"
    store.close()
    second = AgentStore(store.folder.parent)
    second.open()
    second.close()
    store.open()


def test_the_instance_does_not_change(store: AgentStore) -> None:
    instance = store.index.instance
    assert len(instance) == 32
    assert reopened(store).index.instance == instance


def test_nobody_else_can_read_what_is_private(store: AgentStore) -> None:
    fetch(store, V0, model(0))
    save(store, 1.0, 2.0)
    store.keep(V1, 0, b"part")
    assert store.folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in store.folder.iterdir()}
    assert len(modes) >= 6
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}


def test_a_folder_that_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o755)
    store = AgentStore(tmp_path)
    store.open()
    assert store.folder.stat().st_mode & 0o777 == 0o700
    store.close()


BROKEN = (b"", b"{", b"[]", b'{"instance": 3}', b"\xff")


@pytest.mark.parametrize("content", BROKEN)
def test_a_damaged_index_gives_way_to_the_one_before(store: AgentStore, content: bytes) -> None:
    """One change is lost, and repeats itself: here the coordinator's word is heard again."""
    save(store, 1.0, 2.0)
    instance = store.index.instance
    store.settle(accepted=True)
    for _ in range(2):
        store._index.path.write_bytes(content)
        index = reopened(store).index
        assert (index.instance, index.turn is not None) == (instance, True)
    store.settle(accepted=True)
    assert dict(private(reopened(store))) == {"layer.x": 2.0}


def test_an_altered_index_is_found_by_its_checksum(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    path = store._index.path
    path.write_bytes(path.read_bytes().replace(b'"count":1', b'"count":2'))
    assert reopened(store).index.count == 0


def test_an_unreadable_index_is_never_taken_for_none(store: AgentStore) -> None:
    """A device that began anew would lose its name and what it has learnt without a word."""
    save(store, 1.0, 2.0)
    paths = [store.folder / "agent.json", store.folder / "agent.before.json"]
    for content in BROKEN:
        for path in paths:
            path.write_bytes(content)
        store.close()
        with pytest.raises(StoreError, match=r"agent\.json: unreadable, .* restore a backup"):
            store.open()
    for path in paths:
        path.unlink()
    with pytest.raises(StoreError, match="restore a backup"):
        store.open()
    shutil.rmtree(store.folder)
    store.open()


# The model


def test_a_model_is_taken_when_it_is_whole_and_the_one_before_is_removed(store: AgentStore) -> None:
    fetch(store, V0, model(0))
    fetch(store, V1, model(1))
    assert reopened(store).index.held == V1
    found = held_model(store, V1)
    assert np.array_equal(found, read(io.BytesIO(model(1)))["model"])
    assert [path.name for path in store.folder.glob("*.safetensors")] == [f"{V1}.safetensors"]


def test_a_model_that_is_not_what_its_manifest_says_is_not_taken(store: AgentStore) -> None:
    fetch(store, V0, model(0))
    store.keep(V1, 0, model(1))
    with pytest.raises(WireError, match="SHA-256"):
        store.check_model(V1, chunks.manifest(model(2), 1024), read)
    assert store.index.held == V0
    assert list(store.folder.glob("*.part")) == []
    with pytest.raises(WireError, match="none of its chunks"):
        store.check_model(V1, chunks.manifest(model(1), 1024), read)


def test_a_restarted_agent_knows_which_chunks_of_a_model_have_come(store: AgentStore) -> None:
    data = model(0)
    facts = chunks.manifest(data, 1024)
    store.expect(V0, facts)
    for index in (2, 0):
        store.keep(V0, index * 1024, data[index * 1024 :][:1024])
    assert reopened(store).coming() == (V0, facts, frozenset({0, 2}))
    part = store.folder / f"{V0}.part"
    part.write_bytes(b"?" + part.read_bytes()[1:])
    assert reopened(store).coming() == (V0, facts, frozenset({2})), "a torn piece comes again"
    store.expect(V1, facts)
    assert [path.name for path in store.folder.glob("*.part")] == []
    store.keep(V1, 0, data[:1024])
    fetch(store, V1, data)
    assert reopened(store).coming() is None


@pytest.mark.parametrize("torn", [b"", b"{", b"\xff\n", b'{"chunks": 1}\n'])
def test_a_torn_list_of_pieces_begins_anew(store: AgentStore, torn: bytes) -> None:
    store.expect(V0, chunks.manifest(model(0), 1024))
    (store.folder / f"{V0}.coming").write_bytes(torn)
    assert reopened(store).coming() is None


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 100)])
def test_a_held_model_that_is_gone_or_damaged_is_not_held(
    store: AgentStore, damage: Callable[[Path], None]
) -> None:
    fetch(store, V0, model(0))
    damage(store.folder / f"{V0}.safetensors")
    with pytest.raises(WireError):
        held_model(store, V0)
    assert reopened(store).index.held == ""


# Turns


def test_private_state_is_saved_after_the_training_or_once_the_update_is_accepted(
    store: AgentStore,
) -> None:
    save(store, now=1.0, later=2.0)
    assert dict(private(reopened(store))) == {"layer.x": 1.0}
    assert store.index.turn is not None
    assert sent(store) == b"update"
    store.settle(accepted=True)
    assert dict(private(reopened(store))) == {"layer.x": 2.0}
    assert store.index.turn is None


def test_a_turn_that_was_not_accepted_leaves_only_what_follows_the_training(
    store: AgentStore,
) -> None:
    save(store, now=1.0, later=2.0)
    store.settle(accepted=False)
    assert dict(private(reopened(store))) == {"layer.x": 1.0}
    assert store.outgoing is None
    assert list(store.folder.glob("*.update")) == []


def test_which_turn_was_late_is_remembered_through_the_next_ones(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    store.settle(accepted=False, late=True)
    save(store, 3.0, 4.0, V1)
    store.settle(accepted=False)
    late = reopened(store).index.missed
    assert late is not None
    assert late.report.version == V0
    assert store.outgoing is None
    assert list(store.folder.glob("*.update")) == []


def test_an_accepted_update_can_be_sent_again_until_the_next_turn(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    store.settle(accepted=True)
    assert reopened(store).outgoing is not None
    assert sent(store) == b"update"
    store.settle(accepted=False)
    assert dict(private(store)) == {"layer.x": 2.0}, "what was accepted stays so"
    save(store, 3.0, 4.0, V1)
    assert store.outgoing is not None
    assert store.outgoing.report.version == V1
    assert len(list(store.folder.glob("*.update"))) == 1


def test_private_state_of_another_kind_is_refused_with_its_name(store: AgentStore) -> None:
    odd = Private({"a.waves": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(MethodError, match=r"'a.waves' is torch.complex64, which cannot be kept"):
        keep(store, odd, odd)


def test_private_state_comes_back_as_it_was(store: AgentStore) -> None:
    """Tensors of any type and strides, whole numbers as whole numbers, floats bit by bit."""
    values: dict[str, Value] = {
        "a.tensor": torch.randn(3, 4).t(),
        "a.half": torch.randn(5).to(torch.bfloat16),
        "a.counts": torch.arange(7),
        "a.scalar": torch.tensor(2.5),
        "a.empty": torch.zeros(0, 3),
        "b.whole": 2**60 + 1,
        "b.third": 1 / 3,
        "b.tiny": 5e-324,
    }
    keep(store, Private(values), Private(values))
    found = private(reopened(store))
    assert found.keys() == values.keys()
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found.tensor(name), value)
            assert found.tensor(name).dtype == value.dtype
        else:
            assert found[name] == value
            assert type(found[name]) is type(value)


def test_private_state_of_another_run_is_not_this_runs(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    assert dict(private(store, "run")) == {"layer.x": 1.0}
    assert dict(private(store, "another run")) == {}


def test_a_damaged_private_file_is_found_by_its_checksum(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    (path,) = store.folder.glob("*.private")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"{path}: damaged, its SHA-256"):
        private(store)
    path.unlink()
    with pytest.raises(StoreError, match=f"{path}: cannot be read"):
        private(store)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_damaged_private_state_gives_way_to_the_one_before(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    store.settle(accepted=True)
    save(store, 3.0, 4.0, V1)
    store.settle(accepted=False)
    assert dict(private(store)) == {"layer.x": 3.0}
    assert store.index.private is not None
    flip(store.folder / store.index.private.name)
    assert dict(private(reopened(store))) == {"layer.x": 2.0}
    assert store.index.private is not None
    flip(store.folder / store.index.private.name)
    store.close()
    with pytest.raises(StoreError, match=r"damaged, .* none before it; restore a backup"):
        store.open()
    store._take_folder()


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_an_update_that_is_damaged_makes_its_turn_one_to_be_taken_again(
    store: AgentStore, damage: Callable[[Path], None]
) -> None:
    """From the private state that it began with, so that the same update comes of it."""
    save(store, 1.0, 2.0)
    store.settle(accepted=True)
    save(store, 3.0, 4.0, V1)
    damage(store.folder / "2.update")
    assert reopened(store).outgoing is not None, "it may have been accepted: that is asked first"
    assert store.update() is None
    assert dict(private(reopened(store))) == {"layer.x": 2.0}
    save(store, 3.0, 4.0, V1)
    assert (sent(store), dict(private(store))) == (b"update", {"layer.x": 3.0})


def test_a_turn_that_was_to_be_taken_again_may_turn_out_accepted(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    flip(store.folder / "1.update")
    assert store.update() is None
    reopened(store).settle(accepted=True)
    assert dict(private(reopened(store))) == {"layer.x": 2.0}


def test_an_accepted_turn_counts_though_its_update_is_damaged(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    flip(store.folder / "1.update")
    reopened(store).settle(accepted=True)
    assert dict(private(store)) == {"layer.x": 2.0}


def test_a_damaged_accepted_update_is_done_without(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    store.settle(accepted=True)
    (path,) = store.folder.glob("*.update")
    path.write_bytes(b"other!")
    assert reopened(store).outgoing is None
    assert dict(private(store)) == {"layer.x": 2.0}


def test_an_update_that_is_damaged_while_it_is_sent_is_found_out(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    payload = store.update()
    assert payload is not None
    flip(store.folder / "1.update")
    with pytest.raises(StoreError, match=r"1\.update: the file has changed"):
        payload.chunk(0)


def test_a_turn_that_is_being_saved_is_not_swept_and_one_that_failed_is(store: AgentStore) -> None:
    """The coordinator may decide on the turn before meanwhile."""
    save(store, 1.0, 2.0)
    files = TurnFiles(store.folder, store.begin_turn())
    at_once = files.write_private(Private({"layer.x": 3.0}))
    store.settle(accepted=True)
    update, _ = files.write_update(lambda file: file.write(b"update"), 1024)
    path = store.folder / update.name
    store.save_turn(TrainedTurn(report(V1), update, at_once, files.write_accepted(Private())))
    assert dict(private(reopened(store))) == {"layer.x": 3.0}
    store.settle(accepted=True)

    def full(file: object) -> None:
        raise OSError(28, "No space left on device")

    files = TurnFiles(store.folder, store.begin_turn())
    files.write_private(Private({"layer.x": 5.0}))
    with pytest.raises(DiskFullError):
        files.write_update(full, 1024)
    store.drop_turn()
    assert path.exists()
    assert list(store.folder.glob("3.*")) == []


# Any file


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("agent.json", "missing or damaged; using the index in agent.before.json"),
        ("agent.before.json", "missing or damaged; using the index in agent.json"),
        (f"{V1}.safetensors", "damaged; downloading it again"),
        ("2.accepted", "damaged; using the private state before it"),
        ("2.update", "damaged; it was accepted"),
    ],
)
def test_damage_to_any_file_is_mended_and_logged(
    store: AgentStore,
    name: str,
    said: str,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Or told: see the private state and the index that nothing comes before."""
    save(store, 1.0, 2.0)
    store.settle(accepted=True)
    save(store, 3.0, 4.0, V1)
    store.settle(accepted=True)
    fetch(store, V1, model(1))
    instance, newest = store.index.instance, store._index.path.name
    damage(store.folder / name)
    assert reopened(store).index.instance == instance
    assert caplog.messages[0] == f"{store.folder / name}: {said}"
    # Without the newest index the update awaits its answer again, and the model is gone.
    assert len(caplog.messages) == 1 + (name == newest and store.index.held != "")
    assert dict(private(store)) == {"layer.x": 3.0 if name in (newest, "2.accepted") else 4.0}
    caplog.clear()
    reopened(store)
    assert caplog.messages == []


def test_an_index_that_is_gone_is_noticed_by_any_file_that_it_named(store: AgentStore) -> None:
    fetch(store, V0, model(0))
    for path in store.folder.glob("agent*.json"):
        path.unlink()
    store.close()
    with pytest.raises(StoreError, match=r"agent\.json: unreadable"):
        store.open()
    store._take_folder()


def test_a_model_that_is_damaged_while_the_agent_runs_is_not_trained_from(
    store: AgentStore,
) -> None:
    fetch(store, V0, model(0))
    flip(store.folder / f"{V0}.safetensors")
    with pytest.raises(WireError, match=r"its SHA-256 does not fit"):
        held_model(store, V0)


# Syncs


def test_a_turn_is_synced_and_what_can_be_had_again_is_not(
    store: AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the turn, their names, and the index: private state that stays is not new."""
    synced: list[str] = []
    real = os.fsync

    def watched(handle: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    save(store, 1.0, 1.0)
    monkeypatch.setattr(os, "fsync", watched)
    store.settle(accepted=True)
    fetch(store, V0, model(0))
    assert synced == []
    save(store, 1.0, 1.0, V1)
    assert synced == ["2.update", "private", store._index.path.name]
    assert [path.name for path in store.folder.glob("*.private")] == ["1.private"]
    assert list(store.folder.glob("*.accepted")) == []
    synced.clear()
    store.settle(accepted=False)
    assert synced == []


def test_an_answer_that_a_power_cut_took_is_asked_for_again(store: AgentStore) -> None:
    """The index of the turn is whole, and all the private state that it names."""
    save(store, 1.0, 2.0)
    store.settle(accepted=True)
    save(store, 3.0, 4.0, V1)
    store.settle(accepted=True)
    os.truncate(store._index.path, 0)
    assert reopened(store).index.turn is not None
    assert dict(private(store)) == {"layer.x": 3.0}
    store.settle(accepted=True)
    assert dict(private(reopened(store))) == {"layer.x": 4.0}


def test_an_update_is_read_again_when_a_chunk_is_asked_for_again(store: AgentStore) -> None:
    save(store, 1.0, 2.0)
    first = store.update((0,))
    assert store.update((1,)) is first
    flip(store.folder / "1.update")
    assert store.update((0,)) is None


# Power cuts


class CutError(OSError):
    """The power went."""


def counted(real: Any, left: list[int]) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise CutError(5, "the power went")
        return real(*arguments, **named)

    return call


OPERATIONS: dict[str, Callable[[AgentStore], None]] = {
    "save_turn": lambda store: save(store, 3.0, 4.0, V1),
    "settle, accepted": lambda store: store.settle(accepted=True),
    "settle, not accepted": lambda store: store.settle(accepted=False),
    "check_model": lambda store: fetch(store, V1, model(1)),
}


def facts_of(store: AgentStore) -> tuple[Any, ...]:
    """All that an agent would find: whatever is named must be readable."""
    held = store.index.held
    outgoing = store.outgoing
    return (
        held and held_model(store, held).tobytes(),
        dict(private(store)),
        outgoing and (outgoing.report, sent(store), store.index.turn is None),
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write, fsync, rename, removal and change of mode is made the last one in turn."""

    def begun(folder: Path) -> AgentStore:
        store = AgentStore(folder)
        store.open()
        fetch(store, V0, model(0))
        save(store, 1.0, 2.0)
        return store

    store = begun(tmp_path / "before")
    old = facts_of(store)
    OPERATIONS[name](store)
    new = facts_of(store)
    store.close()
    assert old != new

    found = []
    for cut in range(100):
        store = begun(tmp_path / f"cut-{cut}")
        left = [cut]
        with monkeypatch.context() as patched:
            for call in ("write", "pwrite", "fsync", "replace", "unlink", "chmod"):
                patched.setattr(os, call, counted(getattr(os, call), left))
            try:
                OPERATIONS[name](store)
                survived = True
            except (StoreError, CutError):
                survived = False
        copy = AgentStore(tmp_path / f"copy-{cut}")
        shutil.copytree(store.folder, copy.folder)
        store.close()
        copy.open()
        found.append(facts_of(copy))
        fetch(copy, "000002-0123456789abcdef", model(2))
        copy.settle(accepted=True)
        assert len(list(copy.folder.iterdir())) <= 8, "what nothing names is swept"
        copy.close()
        if survived:
            break
    assert len(found) > 1
    turn = found.index(new)
    assert found == [old] * turn + [new] * (len(found) - turn)
