"""The folder of a coordinator of 0.1.0, killed in mid-round, is taken up as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

from fededge_server.store import Store

OLD = Path(__file__).parents[2] / "data" / "version-0.1.0" / "coordinator" / "state"
VERSIONS = ["000000-a1b549a36fcd1667", "000001-19334a821e9e77c2"]


def test_the_folder_of_0_1_0_is_migrated_with_its_accepted_update(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "state")
    store = Store(tmp_path / "state")
    store.open()
    recalled = store.recall()
    assert [progress.version for progress in store.history()] == VERSIONS
    assert recalled.stored == {"left"}
    assert recalled.known == {"left", "right"}
    assert recalled.asked[VERSIONS[1]].keys() == {"left", "right"}
    assert store.update_file(VERSIONS[1], "left").exists()
    assert store.fact("federation") == "old"
    store.close()
    store.open()
    store.close()
    assert len(list((tmp_path / "state").glob("before-format-*"))) == 1
