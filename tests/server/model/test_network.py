"""The coordinator's network: built, and evaluated, in a process of its own that has torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fededge.config import DataConfig, EvaluationHardwareConfig, ModelConfig
from fededge.errors import ConfigError, DataError, FedEdgeError, MethodError, ProcessDiedError
from fededge_server.model.network import ON_CPU, Network

NONE, EMBEDDED = DataConfig(source="none"), DataConfig(source="embedded")
MODEL = ModelConfig(labels=("a", "b"), shape=(1, 28, 28), mean=(0.5,), std=(0.5,))

# A coordinator's use of its network, in a process that has not imported torch.
SCRIPT = """
import json, os, pathlib, signal, sys, time
from fededge.config import DataConfig, ModelConfig
from fededge_server.model.network import Network

def children():
    return [int(pid) for task in pathlib.Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()]

def begin(source, **model):
    network = Network(ModelConfig(**model), DataConfig(source=source), "fedavg", 3)
    return network, network.start()

def said(**facts):
    print(json.dumps({**facts, "torch": "torch" in sys.modules}), flush=True)

if __name__ == "__main__":
"""


def program(folder: Path, body: str) -> list[str]:
    """A file, so that the process beside can import it too."""
    path = folder / "coordinator.py"
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    path.write_text(SCRIPT + lines)
    return [sys.executable, str(path)]


def told(folder: Path, body: str) -> dict[str, Any]:
    """The output of a process without torch."""
    done = subprocess.run(
        program(folder, body), capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def gone(pid: int, patience: float = 30.0) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_the_first_model_is_the_same_wherever_it_is_built(tmp_path: Path) -> None:
    """And without data to evaluate on, its process is gone when it has been built."""
    here = Network(MODEL, NONE, "fedavg", 3).start()
    body = """
network, founded = begin("none", labels=("a", "b"), shape=(1, 28, 28), mean=(0.5,), std=(0.5,))
said(sha256=founded.layout.sha256(founded.first), layout=founded.layout.hash, left=children(),
     accuracy=network.accuracy(founded.first))
"""
    assert told(tmp_path, body) == {
        "sha256": here.layout.sha256(here.first),
        "layout": here.layout.hash,
        "left": [],
        "accuracy": None,
        "torch": False,
    }


@pytest.mark.slow
def test_accuracies_are_the_same_wherever_they_are_taken(tmp_path: Path) -> None:
    network = Network(ModelConfig(), EMBEDDED, "fedavg", 3)
    founded = network.start()
    other = founded.first + np.float32(0.01)
    expected = [network.accuracy(founded.first), network.accuracy(other)]
    body = """
import numpy as np
network, founded = begin("embedded")
other = founded.first + np.float32(0.01)
said(accuracies=[network.accuracy(founded.first), network.accuracy(other)])
"""
    assert told(tmp_path, body) == {"accuracies": expected, "torch": False}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_named() -> None:
    on_gpu = EvaluationHardwareConfig(device="cuda")
    with pytest.raises(ConfigError, match=r"device is 'cuda', but torch .* sees no such device"):
        Network(ModelConfig(), EMBEDDED, "fedavg", 3, on_gpu).start()
    Network(MODEL, NONE, "fedavg", 3, on_gpu).start()  # nothing is evaluated


@pytest.mark.slow
def test_the_evaluation_computes_in_the_configured_precision() -> None:
    lower = EvaluationHardwareConfig(precision="bfloat16")
    plain, network = (Network(ModelConfig(), EMBEDDED, "fedavg", 3, h) for h in (ON_CPU, lower))
    first = plain.start().first
    network.start()
    assert network.accuracy(first) == pytest.approx(plain.accuracy(first), abs=0.02)


@pytest.mark.slow
def test_a_killed_process_costs_one_accuracy(tmp_path: Path) -> None:
    body = """
network, founded = begin("embedded")
before = network.accuracy(founded.first)
for pid in children():
    os.kill(pid, signal.SIGKILL)
lost, after = network.accuracy(founded.first), network.accuracy(founded.first)
said(lost=lost, same=before == after and before is not None)
"""
    assert told(tmp_path, body) == {"lost": None, "same": True, "torch": False}


@pytest.mark.parametrize("error", [ConfigError("cuda:0 has 9 MB"), ProcessDiedError("it ended")])
def test_an_evaluation_that_cannot_start_again_costs_one_accuracy(
    error: FedEdgeError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(ModelConfig(), EMBEDDED, "fedavg", 3)  # as one whose process was killed

    def start() -> None:
        raise error

    monkeypatch.setattr(network, "start", start)
    assert network.accuracy(np.zeros(3, np.float32)) is None
    assert caplog.messages == [f"{error}: this version has no accuracy"]


@pytest.mark.slow
def test_a_process_that_refuses_to_start_again_costs_an_accuracy_each_time(tmp_path: Path) -> None:
    """It ends with its sentence; the next evaluation starts another one."""
    body = """
network, founded = begin("embedded")
wanted = network.wanted
network.stop()
from dataclasses import replace
network.wanted = replace(wanted, data=DataConfig(source="folder", root="/nowhere"))
lost = [network.accuracy(founded.first), network.accuracy(founded.first)]
left, network.wanted = children(), wanted
said(lost=lost, left=left, back=network.accuracy(founded.first) is not None)
"""
    expected = {"lost": [None, None], "left": [], "back": True, "torch": False}
    assert told(tmp_path, body) == expected


@pytest.mark.slow
def test_a_killed_coordinator_leaves_no_process_behind(tmp_path: Path) -> None:
    body = 'network, founded = begin("embedded")\nsaid(pids=children())\ntime.sleep(600)'
    process = subprocess.Popen(program(tmp_path, body), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    (pid,) = json.loads(process.stdout.readline())["pids"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gone(pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "method", "error", "words"),
    [
        (ModelConfig(name="lenett"), EMBEDDED, "fedavg", ConfigError, "lenett"),
        (ModelConfig(), NONE, "fedavg", ConfigError, "labels and shape"),
        (ModelConfig(), DataConfig(source="folder", root="/nowhere"), "fedavg", DataError, "/nowh"),
        (MODEL, NONE, "lfd", MethodError, "cosine"),
    ],
)
def test_a_mistake_is_the_same_sentence_from_the_other_process(
    model: ModelConfig,
    data: DataConfig,
    method: str,
    error: type[Exception],
    words: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=words) as here:
        Network(model, data, method, 0).start()
    body = f"""
import msgspec
from fededge.errors import FedEdgeError
model = msgspec.convert({msgspec.to_builtins(model)!r}, ModelConfig)
data = msgspec.convert({msgspec.to_builtins(data)!r}, DataConfig)
try:
    Network(model, data, {method!r}, 0).start()
except FedEdgeError as error:
    said(kind=type(error).__name__, words=str(error))
"""
    there = told(tmp_path, body)
    assert (there["kind"], there["words"]) == (type(here.value).__name__, str(here.value))
