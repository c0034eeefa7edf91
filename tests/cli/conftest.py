"""The folder of a run, for the commands that read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fededge.config import CoordinatorConfig, load
from fededge_server.model.network import Network
from fededge_server.model.versions import Versions
from fededge_server.store import Store

CONFIG = """
federation = "gates"
state = "state"
[model]
name = "mlpnet"
labels = ["truck", "bus"]
shape = [1, 8, 8]
mean = [0.5]
std = [0.25]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file of a run with three versions; the last one repeats the second."""
    path = tmp_path / "coordinator.toml"
    path.write_text(CONFIG)
    config = load(path, CoordinatorConfig)
    store = Store(Path(config.state))
    store.open()
    network = Network(config.model, config.data, config.method, config.seed)
    versions = Versions.resume(config, store, network, network.start(), lambda: 1.8e9)
    reports = {"gate-1": {"examples": 30.0}, "gate-2": {"examples": 12.0}}
    versions.advance(1, versions.model * 2, versions.state, reports, 12.5)
    versions.go_back(versions.progress.version)
    store.remember(3, versions.progress.version, {}, reports)
    store.close()
    return path
