"""An agent's backup: its identity, private state and update, while it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fededge.errors import StoreError
from fededge.storage import archive
from fededge.storage.archive import Contents, VanishedError
from fededge_agent.store import AgentStore
from fededge_agent.store.backup import back_up
from fededge_agent.store.checking import damage
from tests.device_agent.store.test_store import (
    V0,
    V1,
    fetch,
    held_model,
    model,
    private,
    save,
    sent,
)

ABOUT = Contents("agent", "gates", "box", "0.1.0", "2026-01-01T00:00:00+00:00", "")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AgentStore]:
    made = AgentStore(tmp_path / "state")
    made.open()
    yield made
    made.close()


def restored(path: Path, state: Path) -> AgentStore:
    archive.restore(path, state, archive.read_contents(path), damage)
    store = AgentStore(state)
    store.open()
    return store


def test_a_pending_update_and_its_private_state_are_restored(
    store: AgentStore, tmp_path: Path
) -> None:
    fetch(store, V0, model(0))
    save(store, 1.0, 2.0)
    store.settle(True)
    save(store, 3.0, 4.0, V1)
    (tmp_path / "state" / "ledger.json").write_bytes(b"what has left")
    made = back_up(tmp_path / "state", tmp_path / "backup", ABOUT)
    assert made.stands == "2 turns, run run"
    index = store.index
    store.settle(True)
    save(store, 5.0, 6.0, V1)
    other = restored(tmp_path / "backup", tmp_path / "other")
    assert other.index == index
    assert sent(other) == b"update"
    assert dict(private(other, "run")) == {"layer.x": 3.0}
    assert (held_model(other, V0) == held_model(store, V0)).all()
    other.settle(True)
    assert dict(private(other, "run")) == {"layer.x": 4.0}
    assert (tmp_path / "other" / "ledger.json").read_bytes() == b"what has left"
    assert (tmp_path / "other" / "private").stat().st_mode & 0o077 == 0
    other.close()


def test_a_new_agent_keeps_its_identity(store: AgentStore, tmp_path: Path) -> None:
    back_up(tmp_path / "state", tmp_path / "backup", ABOUT)
    other = restored(tmp_path / "backup", tmp_path / "other")
    assert other.index.instance == store.index.instance
    other.close()


def test_a_damaged_private_file_is_not_backed_up(store: AgentStore, tmp_path: Path) -> None:
    save(store, 1.0, 2.0)
    assert store.index.private is not None
    (store.folder / store.index.private.name).write_bytes(b"rot")
    with pytest.raises(VanishedError, match="damaged, or it changes too quickly"):
        back_up(tmp_path / "state", tmp_path / "backup", ABOUT)
    assert "backup" not in os.listdir(tmp_path)


def test_a_folder_without_an_agent_has_no_backup(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is nothing to back up"):
        back_up(tmp_path / "nobody", tmp_path / "backup", ABOUT)
