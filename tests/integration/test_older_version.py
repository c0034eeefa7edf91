"""A federation whose folders 0.1.0 left in mid-round goes on to its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fededge_server.store import Store
from tests.integration.conftest import Federation
from tests.server.store.test_older_version import VERSIONS

OLD = Path(__file__).parents[1] / "data" / "version-0.1.0"
pytestmark = pytest.mark.slow


def test_a_run_of_0_1_0_is_finished(federation: Federation) -> None:
    for name in ("coordinator", "left", "right"):
        shutil.copytree(OLD / name, federation.folder / name)
    federation.name = "old"
    coordinator = federation.coordinator(
        method="scaffold",
        seed=7,
        data={"source": "none"},
        model={"name": "fasttext", "labels": ("bad", "good"), "shape": (8,), "vocabulary": 40},
        rounds={"count": 3, "min_devices": 2, "quorum": 2, "deadline": 600.0},
        training={"batch_size": 8, "epochs": 1, "lr": 0.1},
    )
    for device in ("left", "right"):
        federation.agent(device, data={"source": "csv", "root": "texts.csv"})
    assert federation.ended(coordinator) == 0, coordinator.said(20)
    history = Store(federation.state("coordinator")).history()
    assert [progress.version for progress in history][:2] == VERSIONS
    assert len(history) == 4
