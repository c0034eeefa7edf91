"""The trainer process in a real federation: the agent's own process never has torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.integration.conftest import Federation
from tests.integration.test_federation import rounds_done, versions
from tests.trainers import children_of, kill_in_turn, maps_torch, soon, trainer_of

pytestmark = pytest.mark.slow

IDLE_MB = 60.0


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS"))


def test_an_agent_never_has_torch_and_is_small_when_it_is_idle(federation: Federation) -> None:
    agent = federation.agent("box", devices=1, hardware={"idle": 1.0})
    coordinator = federation.coordinator(rounds={"count": 3, "min_devices": 1})
    pid = agent.pid
    assert pid is not None
    federation.wait_for(
        lambda: (trainer := trainer_of(pid)) and maps_torch(trainer), "a trainer with torch"
    )
    while coordinator.exit_code is None:
        assert not maps_torch(pid)
        soon(lambda: coordinator.exit_code is not None, 0.2)
    assert federation.ended(coordinator) == 0
    current = federation.state("box") / "models" / "current" / "model.onnx"
    federation.wait_for(current.exists, "the export")
    federation.wait_for(lambda: not children_of(pid), "trainer and exporter to end")
    assert not maps_torch(pid)
    assert b"onnxruntime" not in Path(f"/proc/{pid}/maps").read_bytes()
    assert resident_mb(pid) <= IDLE_MB


def finished(folder: Path, name: str, federation: Federation, kills: int) -> str:
    """The last version of a run in which the trainer of one agent is killed so often."""
    run = Federation(
        folder / name, federation.broker, federation.images, f"{federation.name}{name}"
    )
    run.folder.mkdir()
    coordinator = run.coordinator(
        method="scaffold",
        rounds={"count": 3, "min_devices": 2, "quorum": 2, "backoff": 0.5},
        training={"epochs": 30},
    )
    agents = [run.agent(f"box-{index}", index=index) for index in range(2)]
    pid = agents[0].pid
    assert pid is not None
    for kill in range(kills):
        assert kill_in_turn(pid, partial(agents[0].said, 1000), kill), agents[0].said(30)
    try:
        assert run.ended(coordinator) == 0
        assert rounds_done(run) == 3
        assert agents[0].pid == pid
        return versions(run)[-1]
    finally:
        for child in run.children:
            child.kill()


def test_a_trainer_that_is_killed_twice_costs_no_bits(
    federation: Federation, tmp_path: Path
) -> None:
    """The run ends by itself, with the weights of an undisturbed one."""
    undisturbed = finished(tmp_path, "calm", federation, kills=0)
    assert finished(tmp_path, "killed", federation, kills=2) == undisturbed
