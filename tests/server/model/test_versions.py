"""The current version, and the bytes of it that travel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fededge.config import CoordinatorConfig, DataConfig, ModelConfig, TransferConfig
from fededge.errors import ConfigError, DiskFullError
from fededge.federated.warm_start import WeightsOrigin, write_weights
from fededge.flat import as_numpy
from fededge.storage.source import FileSource
from fededge.wire import tensors
from fededge_server.model import versions as module
from fededge_server.model.network import Network
from fededge_server.model.versions import Versions
from fededge_server.store import Store

MODEL = ModelConfig(name="lenet", labels=("a", "b"), shape=(1, 28, 28), mean=(0.5,), std=(0.5,))

WITHOUT, EMBEDDED = DataConfig(source="none"), DataConfig(source="embedded")


def config_of(
    folder: Path, method: str, encoding: str, data: DataConfig = WITHOUT
) -> CoordinatorConfig:
    return CoordinatorConfig(
        federation="f",
        state=str(folder),
        method=method,
        model=MODEL if data is WITHOUT else ModelConfig(name="lenet"),
        data=data,
        transfer=TransferConfig(encoding=encoding),
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    opened.open()
    yield opened
    opened.close()


def made(store: Store, method: str = "fedavg", encoding: str = "float32") -> Versions:
    return resumed(config_of(store.folder, method, encoding), store)


def resumed(config: CoordinatorConfig, store: Store) -> Versions:
    network = Network(config.model, config.data, config.method, config.seed)
    return Versions.resume(config, store, network, network.start())


def test_the_payload_is_the_model_file_without_further_vectors_and_compression(
    store: Store,
) -> None:
    versions = made(store)
    path = versions.payload()
    assert path == FileSource(store.model(versions.progress.version))
    assert not store.published.exists()


@pytest.mark.parametrize(
    ("method", "encoding"), [("scaffold", "float32"), ("fedavg", "float32+zstd")]
)
def test_another_payload_has_its_own_file_or_is_in_memory_on_a_full_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch, method: str, encoding: str
) -> None:
    versions = made(store, method, encoding)
    path = versions.payload()
    assert path == FileSource(store.published)
    with versions.encoding.decompressed(store.published.read_bytes(), 10**7) as file:
        found = tensors.decode(versions.layout, file, ("model", *versions.method.sends))
    assert np.array_equal(found["model"], versions.model)

    def full(path: Path, synced: bool) -> None:
        raise DiskFullError("the disk is full")

    before = store.published.read_bytes()
    monkeypatch.setattr(module, "replacing", full)
    assert versions.payload() == before


def test_a_second_process_goes_on_from_the_same_version(store: Store) -> None:
    first = made(store)
    second = made(store)
    assert second.progress == first.progress
    assert np.array_equal(second.model, first.model)
    assert second.model.dtype == np.float32


def exported(versions: Versions, path: Path) -> Path:
    """The current version's weights, as `fededge versions export --weights` writes them."""
    progress, spec = versions.progress, versions.spec
    origin = WeightsOrigin(
        federation="f",
        version=progress.version,
        sha256=progress.sha256,
        labels=spec.labels,
        mean=spec.mean,
        std=spec.std,
    )
    write_weights(path, versions.layout, versions.model, origin)
    return path


def beginning_with(path: Path, folder: Path, **model: object) -> CoordinatorConfig:
    config = config_of(folder, "scaffold", "float32")
    model |= {"weights": str(path)}
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, **model))


@pytest.fixture
def start(store: Store, tmp_path: Path) -> Path:
    """The weights of the second version of a run."""
    before = made(store)
    before.advance(1, before.model + np.float32(1), {}, {}, None)
    return exported(before, tmp_path / "start.safetensors")


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "new")
    opened.open()
    yield opened
    opened.close()


def test_a_new_run_begins_with_the_weights_of_an_old_one(
    store: Store, new: Store, start: Path
) -> None:
    versions = resumed(beginning_with(start, new.folder), new)
    old = store.history()[-1]
    assert versions.progress.version == f"000000-{old.version.partition('-')[2]}"
    assert versions.progress.sha256 == old.sha256
    assert versions.run != store.fact("run")
    assert not any(vector.any() for vector in versions.state.values()), "the method's state is new"
    (change,) = new.changes()
    assert (change.round, change.kind) == (0, "warm start")
    assert change.what == f"version {old.version} of federation f, by start.safetensors"


def test_a_run_that_has_begun_needs_its_weights_no_more(new: Store, start: Path) -> None:
    config = beginning_with(start, new.folder)
    first = resumed(config, new)
    assert resumed(config, new).progress == first.progress
    start.unlink()
    assert resumed(config, new).progress == first.progress
    assert len(new.changes()) == 1


def test_weights_that_come_too_late_are_refused(store: Store, start: Path) -> None:
    late = msgspec.structs.replace(beginning_with(start, store.folder), method="fedavg")
    with pytest.raises(ConfigError, match="has begun without these weights: leave them out to go"):
        resumed(late, store)
    assert len(store.history()) == 2


def test_weights_that_do_not_fit_begin_no_run(new: Store, start: Path) -> None:
    """The configuration is corrected, and the same folder serves."""
    with pytest.raises(ConfigError, match=r"do not fit the network of .* head\.bias is 2, not 3"):
        resumed(beginning_with(start, new.folder, labels=("a", "b", "c")), new)
    assert new.fact("run") is None
    assert resumed(beginning_with(start, new.folder), new).progress.rounds_done == 0


def test_another_normalisation_is_told_in_the_log(
    new: Store, start: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resumed(beginning_with(start, new.folder, mean=(0.1,)), new)
    assert "trained with mean [0.5]" in caplog.text


def test_a_model_is_evaluated_where_it_lies(store: Store) -> None:
    """One copy is enough: the network that evaluates it has the version's own memory."""
    versions = resumed(config_of(store.folder, "fedavg", "float32", EMBEDDED), store)
    model = versions.model + np.float32(1)
    versions.advance(1, model, {}, {}, None)
    assert versions.progress.accuracy is not None
    assert versions.model is model
    assert versions.network._here is not None
    assert np.shares_memory(as_numpy(versions.network._here.net.vector), model)


ALONE = """
import msgspec, pathlib, sys
from fededge.config import CoordinatorConfig
from fededge_server.store import Store
from fededge_server.model.network import Network
from fededge_server.model.versions import Versions

config = msgspec.json.decode(sys.argv[1], type=CoordinatorConfig)
store = Store(pathlib.Path(config.state))
store.open()
network = Network(config.model, config.data, config.method, config.seed)
versions = Versions.resume(config, store, network, network.start())
network.stop()
store.close()
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("data", [WITHOUT, EMBEDDED], ids=lambda data: str(data.source))
def test_a_process_without_torch_makes_the_same_version_and_stays_without(
    tmp_path: Path, data: DataConfig
) -> None:
    config = config_of(tmp_path, "scaffold", "float32", data)
    command = [sys.executable, "-c", ALONE, msgspec.json.encode(config).decode()]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("False\n", "")
    alone, here = Store(tmp_path), Store(tmp_path / "here")
    here.open()
    versions = resumed(config, here)
    here.close()
    (first,) = alone.history()
    assert replace(first, date=versions.progress.date) == versions.progress
    assert (versions.progress.accuracy is None) == (data is WITHOUT)
    for path in (here.model(versions.progress.version), here._state(versions.progress.version)):
        assert (alone.models / path.name).read_bytes() == path.read_bytes()
