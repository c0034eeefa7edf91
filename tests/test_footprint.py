"""The services hold a bounded number of models in memory, independent of the fleet's size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.footprint import FORGET, Peaks

pytestmark = [
    pytest.mark.skipif(not FORGET.exists(), reason="only Linux tells the peak of a single step"),
    pytest.mark.timeout(900),  # a slow disk has much to sync
]

ROOT = Path(__file__).parent.parent
MARGIN = 0.6
"""Allowance, in models of 68 MB: chunks, activations, and torch's own set-up."""


EVERY = ["float32", "float16", "bfloat16+delta", "int8+delta", "float32+zstd", "int8+delta+zstd"]


def peaks_of(what: str, encoding: str) -> Peaks:
    """In a process of its own: in ours, other tests have left free memory behind."""
    program = [sys.executable, "-m", "tests.footprint", what, encoding]
    found = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    peaks: Peaks = json.loads(found.stdout)
    return peaks


@pytest.mark.parametrize("encoding", EVERY)
def test_an_agent_holds_three_models_beside_the_one_in_training(encoding: str) -> None:
    """Received, momentum and torch's gradient of a layer, which here is nearly all of the network;
    then received, trained and the residue. On the way, less.
    """
    peaks = peaks_of("agent", encoding)
    assert 0.9 < peaks["fetch"] < 1 + MARGIN
    assert 2 < peaks["train"] < 3 + MARGIN
    assert peaks["send"] < MARGIN


@pytest.mark.parametrize("encoding", EVERY)
def test_a_coordinator_holds_one_model_beside_the_current_one(encoding: str) -> None:
    """An update while it is checked, the next version while it is made; to publish it, neither."""
    peaks = peaks_of("merging", encoding)
    assert 0.9 < peaks["check"] < 1 + MARGIN
    assert 0.9 < peaks["merge"] < 1 + MARGIN
    assert peaks["publish"] < MARGIN


def test_all_that_a_coordinator_adds_to_its_imports_is_less_than_three_models() -> None:
    """From building the network to the last of three rounds with six updates each."""
    assert 1.9 < peaks_of("coordinator", "float32")["run"] < 2 + MARGIN


def test_a_coordinator_imports_nothing_large() -> None:
    """It would be in every coordinator's memory, for nothing; torch alone is half a gigabyte."""
    said = _said("import sys, fededge_server.shell; print(*sys.modules)")
    found = {name.partition(".")[0] for name in said.split()}
    large = {"matplotlib", "onnx", "onnxruntime", "onnxscript", "PIL", "sympy", "torch"}
    assert found >= {"fededge_server", "paho"}
    assert not found & {*large, "torchvision"}


def test_an_agent_imports_nothing_large() -> None:
    """Large packages are in its trainer process, which runs only for turns."""
    agent = "fededge.cli.operation.agent, fededge_agent.agent"
    said = _said(f"import sys, {agent}; print(*sys.modules)")
    found = {name.partition(".")[0] for name in said.split()}
    large = {"matplotlib", "onnx", "onnxruntime", "onnxscript", "PIL", "sympy", "torch"}
    assert found >= {"fededge_agent", "paho"}
    assert not found & {*large, "torchvision"}


def _said(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
