"""The network beside the journal: a restart needs no torch, and a change is still noticed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fededge.config import CoordinatorConfig, DataConfig, ModelConfig
from fededge.errors import ConfigError, DiskFullError
from fededge_server.model import kept_network as kept
from fededge_server.model.kept_network import keep_network, kept_network
from fededge_server.model.network import Founded, Network, NetworkRequest
from fededge_server.shell import Coordinator

MODEL = ModelConfig(labels=("a", "b"), shape=(1, 28, 28), mean=(0.5,), std=(0.5,))


class Counting(Network):
    """Counts how often the network is built."""

    def __init__(self, config: CoordinatorConfig) -> None:
        super().__init__(config.model, config.data, config.method, config.seed)
        self.built = 0

    def start(self) -> Founded:
        self.built += 1
        return super().start()


class Silent:
    """A session with nobody at the other end."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def config(folder: Path, **changes: Any) -> CoordinatorConfig:
    values: dict[str, Any] = {"model": MODEL, "data": DataConfig(source="none"), "seed": 3}
    return CoordinatorConfig(federation="f", state=str(folder), **{**values, **changes})


def start(wanted: CoordinatorConfig) -> int:
    """Start a coordinator and end it; how often it has built the network."""
    network = Counting(wanted)
    coordinator = Coordinator(
        wanted,
        network=network,
        connect=lambda *_, **__: cast("Any", Silent()),
        claim=lambda *_: None,
    )
    try:
        coordinator.start()
    finally:
        coordinator.close()
    return network.built


def request(**changes: Any) -> NetworkRequest:
    wanted = Network(MODEL, DataConfig(source="none"), "fedavg", 3).wanted
    return replace(wanted, **changes)


@pytest.fixture(scope="module")
def founded() -> Founded:
    return Network(MODEL, DataConfig(source="none"), "fedavg", 3).start()


def test_a_restart_builds_nothing(tmp_path: Path) -> None:
    assert [start(config(tmp_path)) for _ in range(3)] == [1, 0, 0]


def test_a_changed_configuration_is_refused_as_before(tmp_path: Path) -> None:
    start(config(tmp_path))
    other = ModelConfig(labels=("a", "b", "c"), shape=(1, 28, 28), mean=(0.5,), std=(0.5,))
    with pytest.raises(ConfigError, match=r"this run was begun with labels = a, b, the configurat"):
        start(config(tmp_path, model=other))
    with pytest.raises(ConfigError, match=r"this run was begun with seed = 3, the .* seed = 4"):
        start(config(tmp_path, seed=4))
    assert start(config(tmp_path)) == 0, "what was kept is as it was"


def test_a_first_start_that_was_cut_short_builds_the_network_again(
    tmp_path: Path, founded: Founded
) -> None:
    keep_network(tmp_path, request(), founded)  # of a run whose journal was removed
    assert start(config(tmp_path)) == 1
    assert start(config(tmp_path)) == 0


def test_what_is_kept_is_what_was_built(tmp_path: Path, founded: Founded) -> None:
    keep_network(tmp_path, request(), founded)
    found = kept_network(tmp_path, request())
    assert found is not None
    assert (found.spec, found.layout, found.first.size) == (founded.spec, founded.layout, 0)
    assert found.layout.hash == founded.layout.hash


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 4},
        {"method": "fedprox"},
        {"data": DataConfig(source="embedded")},
        {"model": ModelConfig(name="cnn4")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_network_of_another_configuration_is_not_used(
    tmp_path: Path, founded: Founded, changes: dict[str, Any]
) -> None:
    keep_network(tmp_path, request(), founded)
    assert kept_network(tmp_path, request(**changes)) is None


def test_damage_names_the_file_and_the_network_is_built(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(config(tmp_path))
    path = tmp_path / "network.json"
    whole = path.read_bytes()
    for damaged in (b"", whole[:-40], whole.replace(b'"lenet"', b'"cnn4"'), b"{" * 5000):
        path.write_bytes(damaged)
        caplog.clear()
        assert start(config(tmp_path)) == 1
        (said,) = [m for m in caplog.messages if "network.json" in m]
        assert said == f"{path}: damaged, or of another format; the network is built again"
        assert path.read_bytes() == whole, "it is written anew"


def test_every_damaged_bit_is_noticed(tmp_path: Path, founded: Founded) -> None:
    keep_network(tmp_path, request(), founded)
    path = tmp_path / "network.json"
    whole = path.read_bytes()
    for index in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 4]) + whole[index + 1 :])
        assert kept_network(tmp_path, request()) is None, index


def test_a_full_disk_keeps_nobody_from_starting(
    tmp_path: Path, founded: Founded, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise DiskFullError(f"{path}: the disk is full")

    monkeypatch.setattr(kept, "replace_file", full)
    keep_network(tmp_path, request(), founded)
    assert "the next start builds the network again" in caplog.text
    assert kept_network(tmp_path, request()) is None


@pytest.mark.slow
def test_a_process_that_builds_meanwhile_evaluates_as_one_that_was_waited_for(
    tmp_path: Path,
) -> None:
    """In a process without torch, as a coordinator is."""
    program = """
import sys
import msgspec
from fededge.config import DataConfig, ModelConfig
from fededge_server.model.network import Founded, Network
network = Network(ModelConfig(), DataConfig(source="embedded"), "fedavg", 3)
founded = network.start()
expected = network.accuracy(founded.first)
network.stop()
network.resume(Founded.without_values(founded.spec, founded.layout))
assert network.accuracy(founded.first) == expected is not None
network.stop()
other = msgspec.structs.replace(founded.spec, head="bias-free")
network.resume(Founded.without_values(other, founded.layout))
assert network.accuracy(founded.first) is None, "another network than the run's evaluates nothing"
assert "torch" not in sys.modules
network.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "has other labels, shapes or normalisation than when the run began" in done.stderr
