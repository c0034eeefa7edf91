"""`fededge demo`, as a user runs it: twice with one seed, over either broker, and simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from fededge.config import DataConfig, ModelConfig, TrainingConfig
from fededge.data import embedded
from fededge.data.local import model_spec, share_examples
from fededge.methods import Hyper
from fededge.simulation import Setup, Simulation

pytestmark = pytest.mark.slow

FLAGS = ("--rounds", "2", "--agents", "3", "--seed", "5", "--method", "fedprox(mu=0.1)")


def demo(folder: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """Run the demo; its JSON result, and what it printed."""
    result = folder / "result.json"
    command = [sys.executable, "-m", "fededge", "demo", "--out", str(folder / "out")]
    done = subprocess.run(
        [*command, "--json", str(result), *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(result.read_text()), done.stdout


def simulated() -> str:
    """The hash of the same federation run in this process, without a broker."""
    shares = DataConfig(source="embedded", split="dirichlet:0.1", devices=3, seed=5)
    spec = model_spec(ModelConfig(), shares)
    training = TrainingConfig()
    hyper = Hyper(
        training.epochs,
        training.batch_size,
        training.lr,
        training.momentum,
        training.weight_decay,
    )
    train, test = embedded()
    parts = share_examples(train, shares)
    devices = {f"device-{index + 1}": part for index, part in enumerate(parts)}
    setup = Setup("fedprox(mu=0.1)", spec, hyper, 5, devices, test.x, test.y)
    simulation = Simulation(setup)
    *_, last = simulation.rounds(2)
    return simulation.layout.sha256(last.model)


def test_one_seed_gives_the_same_weights_over_both_brokers_and_simulated(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, said = demo(tmp_path / "first", *FLAGS)
    second, _ = demo(tmp_path / "second", *FLAGS, "--broker", "python")
    assert first["model_sha256"] == second["model_sha256"] == simulated()
    assert first["model_sha256"] in said


def test_the_result_says_what_came_of_it(tmp_path: Path) -> None:
    """The object has the promised keys, and its figures can be checked against the files."""
    result, said = demo(tmp_path, "--rounds", "3", "--agents", "2")
    assert set(result) == {
        *("seed", "method", "rounds", "model_sha256", "global_accuracy", "devices"),
    }
    assert (result["seed"], result["method"], result["rounds"]) == (0, "fedavg", 3)
    assert result["global_accuracy"]["after"] > result["global_accuracy"]["before"] + 0.1
    shares = share_examples(
        embedded()[0], DataConfig(source="embedded", split="dirichlet:0.1", devices=2)
    )
    for device, data in zip(result["devices"], shares, strict=True):
        assert set(device) == {
            *("id", "classes", "samples", "torch_accuracy", "onnx_accuracy", "model", "bytes_sent"),
        }
        assert device["samples"] == len(data.y)
        assert len(device["classes"]) == len(data.y.unique())
        session = onnxruntime.InferenceSession(device["model"])
        (probabilities,) = session.run(["probabilities"], {"image": data.held_x.numpy()})
        accuracy = float(np.mean(probabilities.argmax(1) == data.held_y.numpy()))
        assert device["onnx_accuracy"] == pytest.approx(accuracy)
        assert device["torch_accuracy"] == pytest.approx(accuracy, abs=2 / len(data.held_y))
        assert device["bytes_sent"]["tensor head.weight"] > 0
        assert device["id"] in said
