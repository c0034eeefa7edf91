"""A new run from a version of an old one: the same agents, with the folders that they have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fededge.cli import main
from fededge.config import DataConfig, ModelConfig, TrainingConfig
from fededge.credentials.signing_keys import make_keys
from fededge.data.local import experiment_data, share_examples
from fededge.methods import Hyper
from fededge.simulation import Setup, Simulation
from fededge_server.model.version_list import list_versions
from fededge_server.store import Store

if TYPE_CHECKING:
    from fededge._internal.processes import Child
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

METHOD, ROUNDS = "scaffold", 2
"""Devices and coordinator remember control variates: a new run must not go on with old ones."""


def run(federation: Federation, name: str, **model: str) -> Child:
    return federation.coordinator(
        name,
        method=METHOD,
        model=model,
        rounds={"count": ROUNDS, "min_devices": 2},
        signing_key=str(federation.folder / "a.key"),
    )


def box(federation: Federation, index: int) -> Child:
    key = str(federation.folder / "a.pub")
    return federation.agent(f"box-{index}", index=index, trusted_key=key)


def simulated(federation: Federation, weights: Path) -> str:
    data = DataConfig(
        source="npz", root=str(federation.images), split="dirichlet:0.5", devices=2, seed=0
    )
    spec, train, test = experiment_data(ModelConfig(), data)
    devices = {f"box-{i}": part for i, part in enumerate(share_examples(train, data))}
    hyper = Hyper(**msgspec.structs.asdict(TrainingConfig()))
    setup = Setup(METHOD, spec, hyper, 0, devices, test.x, test.y)
    simulation = Simulation(setup, weights=weights)
    *_, last = simulation.rounds(ROUNDS)
    return simulation.layout.sha256(last.model)


def test_a_new_run_goes_on_from_the_weights_of_an_old_one(federation: Federation) -> None:
    """One agent stays up, the other starts again; neither knows of a warm start."""
    make_keys(federation.folder / "a.key", federation.folder / "a.pub")
    first = run(federation, "first")
    staying, leaving = (box(federation, index) for index in range(2))
    assert federation.ended(first) == 0, first.said(20)
    leaving.terminate()
    assert federation.ended(leaving) == 0
    weights = federation.folder / "start.safetensors"
    command = ["versions", "export", "000001", "--weights", str(weights)]
    assert not main([*command, "--config", str(federation.folder / "first" / "config.toml")])
    second = run(federation, "second", weights="../start.safetensors")
    box(federation, 1)
    assert federation.ended(second) == 0, second.said(20)
    old, new = (list_versions(federation.state(name)) for name in ("first", "second"))
    assert [len(old), len(new)] == [ROUNDS + 1, ROUNDS + 1]
    assert new[0].sha256 == old[1].sha256
    came = f"version {old[1].version} of federation {federation.name}, by start.safetensors"
    assert new[0].changes == (f"warm start: {came}",)
    assert new[-1].sha256 == simulated(federation, weights)
    runs = [Store(federation.state(name)).run() for name in ("first", "second")]
    assert runs[0] != runs[1]
    assert staying.exit_code is None
