"""The current version, and the bytes of it that travel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fededge.config import CoordinatorConfig
from fededge.config.sections import DataConfig, ModelConfig, TransferConfig
from fededge.errors import DiskFullError
from fededge.wire import tensors
from fededge_server import versions as module
from fededge_server.store import Store
from fededge_server.versions import Versions

MODEL = ModelConfig(name="lenet", labels=("a", "b"), shape=(1, 28, 28), mean=(0.5,), std=(0.5,))


def config_of(folder: Path, method: str, encoding: str) -> CoordinatorConfig:
    return CoordinatorConfig(
        federation="f",
        state=str(folder),
        method=method,
        model=MODEL,
        data=DataConfig(source="none"),
        transfer=TransferConfig(encoding=encoding),
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    opened.open()
    yield opened
    opened.close()


def made(store: Store, method: str = "fedavg", encoding: str = "float32") -> Versions:
    versions = Versions(config_of(store.folder, method, encoding), store)
    versions.prepare()
    versions.resume()
    return versions


def test_what_travels_is_the_file_of_the_model_if_there_is_nothing_else(store: Store) -> None:
    versions = made(store)
    path = versions.payload()
    assert path == store.model(versions.progress.version)
    assert not store.published.exists()


@pytest.mark.parametrize(
    ("method", "encoding"), [("scaffold", "float32"), ("fedavg", "float32+zstd")]
)
def test_what_travels_has_a_file_of_its_own_or_is_in_memory_if_the_disk_is_full(
    store: Store, monkeypatch: pytest.MonkeyPatch, method: str, encoding: str
) -> None:
    versions = made(store, method, encoding)
    path = versions.payload()
    assert path == store.published
    with versions.encoding.plain(store.published.read_bytes(), 10**7) as file:
        found = tensors.decode(versions.net.layout, file, ("model", *versions.method.sends))
    assert torch.equal(found["model"], versions.model)

    def full(path: Path, synced: bool) -> None:
        raise DiskFullError("the disk is full")

    before = store.published.read_bytes()
    monkeypatch.setattr(module, "replacing", full)
    assert versions.payload() == before


def test_a_second_process_goes_on_from_the_same_version(store: Store) -> None:
    first = made(store)
    second = made(store)
    assert second.progress == first.progress
    assert torch.equal(second.model, first.model)
    assert second.net.vector.data_ptr() == second.model.data_ptr(), "one copy is enough"
