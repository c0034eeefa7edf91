"""The agent's folder: that of 0.1.0 is taken up, that of a newer version is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from fededge.errors import StoreError
from fededge.storage.sealed import sealed
from fededge_agent.store import AgentStore
from fededge_agent.store.index import FORMAT

OLD = Path(__file__).parents[2] / "data" / "version-0.1.0"


@pytest.mark.parametrize(("device", "turns"), [("left", 2), ("right", 1)])
def test_the_folder_of_0_1_0_is_taken_up(tmp_path: Path, device: str, turns: int) -> None:
    shutil.copytree(OLD / device / "state", tmp_path / "state")
    store = AgentStore(tmp_path / "state")
    store.open()
    index = store.index
    assert (index.count, index.format) == (turns, FORMAT)
    assert index.last_accepted is not None
    assert store.update() is not None
    store.close()


def test_the_folder_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    store = AgentStore(tmp_path)
    store.open()
    newer = msgspec.structs.replace(store.index, format=FORMAT + 1)
    store.close()
    path = tmp_path / "private" / "agent.json"
    path.write_bytes(sealed(newer))
    before = path.read_bytes()
    said = f"this state has format {FORMAT + 1}, written by a newer version of FedEdge; this one"
    with pytest.raises(StoreError, match=said):
        AgentStore(tmp_path).open()
    assert path.read_bytes() == before
