"""Federations with agents on the emulated accelerator, and with a trainer process that dies."""

from __future__ import annotations

import time

import numpy as np
import pytest

import fededge
from tests import accelerator
from tests.integration.conftest import Federation
from tests.integration.test_federation import rounds_done
from tests.trainers import kill_in_turn

pytestmark = pytest.mark.slow

FIVE = ["fedacd+mixup", "fedala", "fedbalance", "map", "lfd"]
KILLS = 2


@pytest.fixture(autouse=True)
def in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process of the federation knows the device."""
    built = accelerator.load()
    if isinstance(built, str):
        pytest.skip(built)
    monkeypatch.setenv("PYTHONPATH", accelerator.environment()["PYTHONPATH"])


def said(federation: Federation, device: str) -> str:
    log = federation.folder / device / "log.txt"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("method", FIVE)
def test_cpu_accelerator_and_a_trainer_that_dies_twice(method: str, federation: Federation) -> None:
    coordinator = federation.coordinator(
        method=method,
        model={"head": "cosine" if method == "lfd" else "linear"},
        rounds={"count": 3, "min_devices": 3, "quorum": 3, "backoff": 0.2},
        training={"epochs": 3, "lr": 0.05},
    )
    federation.agent("cpu", index=0, devices=3)
    federation.agent("gpu", index=1, devices=3, hardware={"device": "emulated"})
    dying = federation.agent("dying", index=2, devices=3)
    assert dying.pid is not None
    for number in range(KILLS):
        assert kill_in_turn(dying.pid, lambda: said(federation, "dying"), number), dying.said(30)
    assert federation.ended(coordinator) == 0
    assert rounds_done(federation) == 3
    assert "emulated:0" in said(federation, "gpu")
    for device in ("cpu", "gpu", "dying"):
        assert "Traceback" not in said(federation, device)
        model = federation.state(device) / "models" / "current"
        federation.wait_for((model / "model.onnx").exists, f"a personal model of {device}")
        assert fededge.Predictor(model).predict(np.zeros((28, 28), np.uint8)).label


def test_a_small_accelerator_fails_with_a_sentence_and_the_agent_lives(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_MEMORY", str(300_000))
    agent = federation.agent("gpu", devices=1, hardware={"device": "emulated"})
    federation.coordinator(rounds={"count": 1, "min_devices": 1})
    federation.wait_for(lambda: "out of memory" in said(federation, "gpu"), "the sentence")
    time.sleep(1)
    assert agent.exit_code is None
    assert "Traceback" not in said(federation, "gpu")
