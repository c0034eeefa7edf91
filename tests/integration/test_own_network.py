"""A network in a user's own file, from the simulation to an app, over a real broker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from fededge import Predictor, models
from fededge._internal.processes import Child
from fededge.config import DataConfig, ModelConfig, TrainingConfig
from fededge.data.local import experiment_data, share_examples
from fededge.methods import Hyper
from fededge.simulation import Setup, Simulation
from fededge_server.store import Store
from tests.pages import blocks, page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

ROUNDS = 2
TRAINING = {"epochs": 1, "batch_size": 32, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-5}
NOTE = "\nimport os\nwith open({path!r}, 'a') as notes:\n    print(os.getpid(), file=notes)\n"


def said(child: Child, sentence: str) -> bool:
    return sentence in child.log.read_text()


def simulated(reference: str, images: Path) -> str:
    data = DataConfig(source="npz", root=str(images), split="dirichlet:0.5", devices=2)
    spec, train, test = experiment_data(ModelConfig(name=models.load(reference)), data)
    devices = {f"device-{i + 1}": part for i, part in enumerate(share_examples(train, data))}
    hyper = Hyper(**msgspec.structs.asdict(msgspec.convert(TRAINING, TrainingConfig)))
    simulation = Simulation(Setup("moon", spec, hyper, 0, devices, test.x, test.y))
    *_, last = simulation.rounds(ROUNDS)
    return simulation.layout.sha256(last.model)


def test_two_agents_train_the_pages_network_as_simulated_and_an_app_uses_it(
    federation: Federation, images: Path
) -> None:
    """Neither the coordinator nor an agent imports the file; one with another version says so."""
    notes = federation.folder / "imports.txt"
    source = blocks(page("networks.md"), "python")[0] + NOTE.format(path=str(notes))
    (federation.folder / "net.py").write_text(source)
    (federation.folder / "other.py").write_text(f"{source}# another version\n")
    reference = "../net.py:make"  # from the folder of each configuration
    coordinator = federation.coordinator(
        method="moon",
        model={"name": reference},
        training=TRAINING,
        rounds={"count": ROUNDS, "min_devices": 2},
    )
    stranger = federation.agent("device-3", networks=("../other.py:make",))
    sentence = "cannot take part: the federation's network 'make' is in a file with SHA-256"
    federation.wait_for(partial(said, stranger, sentence), "the stranger to be refused")
    agents = [federation.agent(f"device-{i + 1}", i, networks=(reference,)) for i in (0, 1)]
    federation.wait_for(partial(said, coordinator, "rounds are done"), "the last round")

    for device in ("device-1", "device-2"):
        folder = federation.state(device)
        federation.wait_for((folder / "models" / "current" / "model.onnx").exists, "a model")
        with np.load(images) as data:
            answers = Predictor(folder).predict(list(data["x_test"][:3]))
        assert [answer.probabilities.shape for answer in answers] == [(10,)] * 3
    children = (coordinator, stranger, *agents)
    processes = {child.pid for child in children}
    for child in children:
        child.terminate()
    assert [federation.ended(child) for child in children] == [0] * 4
    imported = {int(line) for line in notes.read_text().splitlines()}
    assert imported.isdisjoint(processes)
    assert len(imported) >= 3  # the coordinator's builder and two trainers
    last = Store(federation.state("coordinator")).history()[-1]
    assert last.rounds_done == ROUNDS
    assert last.sha256 == simulated(f"{federation.folder / 'net.py'}:make", images)
