"""Updates of a round, read part by part: rebased, clipped and summed as whole vectors would be."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fededge import methods
from fededge.config import RobustConfig, RoundsConfig
from fededge.errors import StoreError, WireError
from fededge.federated import aggregation
from fededge.flat import Layout, Vector, as_numpy
from fededge.wire import chunks
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Report, round_of
from fededge_server.model.merging import Current, Merging
from fededge_server.store import Progress, Store

LAYOUT = Layout.of(nn.Sequential(nn.Linear(31, 40), nn.BatchNorm1d(40), nn.Linear(40, 3)))
FEDAVG = methods.method("fedavg")
DEVICES = ("a", "b", "c")
EVERY = ["float32", "float16+delta", "bfloat16", "int8+delta", "float32+zstd", "int8+delta+zstd"]


def vector(seed: int) -> Vector:
    return as_numpy(torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "state")
    opened.open()
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that parts begin and end in the middle of tensors."""
    monkeypatch.setattr(aggregation, "BLOCK", 97)


class Round:
    """Three devices have sent: the last of them an update of the version before."""

    def __init__(self, store: Store, encoding: str, robust: RobustConfig, late: bool) -> None:
        self.encoding = Encoding.parse(encoding)
        self.old, self.new = vector(100), vector(101)
        self.store = store
        for number, model in enumerate((self.old, self.new)):
            name = f"{number:06d}-{LAYOUT.sha256(model)[:16]}"
            progress = Progress(number, name, LAYOUT.sha256(model), None)
            store.advance(progress, LAYOUT, model, {}, {}, None)
        self.versions = [progress.version for progress in store.history()]
        self.current = Current(1, self.versions[1], self.new, {})
        rounds = RoundsConfig(late="fold", staleness_power=0.5)
        self.norms: dict[str, float] = {}
        self.merging = Merging(
            store, LAYOUT, FEDAVG, self.encoding, rounds, robust, methods.Hyper()
        )
        self.reports = {d: self.send(i, d, late and d == "c") for i, d in enumerate(DEVICES)}

    def send(self, seed: int, device: str, late: bool) -> Report:
        base, number = (self.old, 0) if late else (self.new, 1)
        file = io.BytesIO()
        self.encoding.write_(None, file, LAYOUT, base + 0.1 * vector(seed), base)
        data = file.getvalue()
        scalars = {**dict.fromkeys(FEDAVG.scalars, 1.0), "examples": seed + 1.0}
        facts = chunks.manifest(data, 1024)
        version = self.versions[number]
        report = Report(device, "run", version, LAYOUT.hash, facts, scalars)
        self.store.expect(device, report)
        for index in range(facts.chunks):
            self.store.keep(version, device, index * 1024, data[index * 1024 :][:1024])
        self.norms[device] = self.merging.check(device, report, self.current, math.inf)
        return report

    def expected(self, clip: float = 0.0) -> npt.NDArray[np.float64]:
        """In float64, from whole vectors, by the formulas of the documentation."""
        total = np.zeros(LAYOUT.size)
        for seed, (device, report) in enumerate(self.reports.items()):
            late = round_of(report.version) == 0
            base = self.old if late else self.new
            path = self.store.update_file(report.version, device)
            sent = self.encoding.unpack(LAYOUT, path.read_bytes(), base)
            change = (sent.astype(np.float64) - base) * (2**-0.5 if late else 1.0)
            norm = np.linalg.norm(change)
            change *= clip / norm if clip and norm > clip else 1.0
            total += (seed + 1) / 6 * (self.new + change)
        return total

    def merged(self) -> Vector:
        outcome = self.merging.merge(self.reports, self.norms, len(DEVICES), self.current)
        assert outcome.merged == DEVICES
        return outcome.model


@pytest.mark.parametrize("encoding", EVERY)
@pytest.mark.parametrize("late", [False, True])
def test_the_mean_of_what_was_sent(store: Store, encoding: str, late: bool) -> None:
    round_ = Round(store, encoding, RobustConfig(), late)
    np.testing.assert_allclose(round_.merged(), round_.expected(), rtol=0, atol=1e-6)
    assert list(store.spool.glob("*/*.plain")) == [], "what was decompressed for it is gone"


def test_more_steps_than_the_announced_training_takes_are_refused(store: Store) -> None:
    """One pass over two examples in batches of 64 is one step."""
    round_ = Round(store, "float32", RobustConfig(), late=False)
    report = round_.reports["b"]
    hostile = msgspec.structs.replace(report, scalars={**report.scalars, "steps": 2.0})
    with pytest.raises(WireError, match="steps must be a whole number between 0 and 1, got 2"):
        round_.merging.check("b", hostile, round_.current, math.inf)


@pytest.mark.parametrize("encoding", EVERY)
def test_the_parts_of_an_update_are_those_of_the_whole_to_the_bit(
    store: Store, encoding: str
) -> None:
    """So a simulation, which sums whole vectors, gives the same model."""
    round_ = Round(store, encoding, RobustConfig(), late=False)
    sent = {}
    for device, report in round_.reports.items():
        data = store.update_file(report.version, device).read_bytes()
        sent[device] = round_.encoding.unpack(LAYOUT, data, round_.new)
    reports = {device: dict(report.scalars) for device, report in round_.reports.items()}
    whole, _ = aggregation.aggregate(
        FEDAVG, round_.new, {}, reports, sent.__getitem__, devices=3, layout=LAYOUT
    )
    assert np.array_equal(round_.merged(), whole)


@pytest.mark.parametrize("late", [False, True])
def test_a_long_change_is_clipped_and_a_short_one_is_left(store: Store, late: bool) -> None:
    norms = sorted(float(np.linalg.norm(0.1 * vector(seed))) for seed in range(3))
    clip = (norms[0] + norms[1]) / 2
    round_ = Round(store, "float32", RobustConfig(clip_norm=clip), late)
    expected = round_.expected(clip)
    assert not np.allclose(expected, round_.expected(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(round_.merged(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("encoding", ["float32", "int8+delta+zstd"])
def test_the_middle_of_the_updates(store: Store, encoding: str) -> None:
    """The median of three is neither the smallest nor the largest."""
    round_ = Round(store, encoding, RobustConfig(combine="median"), late=False)
    found = [
        round_.encoding.unpack(LAYOUT, store.update_file(r.version, d).read_bytes(), round_.new)
        for d, r in round_.reports.items()
    ]
    assert np.array_equal(round_.merged(), np.sort(np.stack(found), axis=0)[1])


def test_an_old_version_that_was_damaged_is_not_added_to(store: Store) -> None:
    round_ = Round(store, "float16+delta", RobustConfig(), late=True)
    path = store.model(round_.versions[0])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged, its SHA-256 does not fit"):
        round_.merged()


def test_decompressed_files_of_an_interrupted_merge_are_removed(store: Store) -> None:
    round_ = Round(store, "float32+zstd", RobustConfig(), late=False)
    round_.merging._expand(round_.reports)
    assert len(list(store.spool.glob("*/*.plain"))) == 3
    store.close()
    store.open()
    assert list(store.spool.glob("*/*.plain")) == []
