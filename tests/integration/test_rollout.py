"""A staged rollout over real processes: stage by stage, then aborted because an app says bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fededge import Predictor
from fededge.export import ModelRegistry

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

DEVICES = ("box-0", "box-1", "box-2")
EXPORT = {"margin": 100.0, "prefer": "int8", "max_drop": 100.0}


def rounds_in_use(federation: Federation) -> list[int]:
    """The round of each device's current model; -1 without one."""
    found = (ModelRegistry(federation.state(device) / "models").current() for device in DEVICES)
    return [-1 if manifest is None else manifest.round for manifest in found]


def test_models_go_out_in_stages_and_come_back_when_an_app_says_bad(
    federation: Federation,
) -> None:
    """The coordinator is killed with -9 in the middle of the stage that is then aborted."""
    agents = [
        federation.agent(device, index=i, devices=3, export=EXPORT)
        for i, device in enumerate(DEVICES)
    ]
    stages = {"stages": (0.3, 1.0), "soak": 2.0, "abort": 0.3}
    first = federation.coordinator(rounds={"count": 1, "min_devices": 3}, rollout=stages)
    assert federation.ended(first) == 0, first.said(20)
    assert "rollout 1: stage 2 of 2" in first.said(50)
    federation.wait_for(lambda: rounds_in_use(federation) == [0, 0, 0], "the first models")

    slow = {**stages, "soak": 600.0}
    second = federation.coordinator(rounds={"count": 2, "min_devices": 3}, rollout=slow)
    federation.wait_for(lambda: 1 in rounds_in_use(federation), "the first stage")
    second.kill()
    again = federation.coordinator(rounds={"count": 2, "min_devices": 3}, rollout=slow)
    used = rounds_in_use(federation)
    assert sorted(used) == [0, 0, 1]
    for device in (d for d, number in zip(DEVICES, used, strict=True) if number == 1):
        predictor = Predictor(federation.state(device))
        assert predictor.about.variant == "int8"
        predictor.report_bad("calls every shirt a coat")
    assert federation.ended(again) == 0, again.said(20)
    assert "rollout 2: aborted" in again.said(50)
    federation.wait_for(lambda: rounds_in_use(federation) == [0, 0, 0], "the way back")

    for agent in agents:
        agent.terminate()
    assert [federation.ended(agent) for agent in agents] == [0, 0, 0]
    for device in DEVICES:
        models = ModelRegistry(federation.state(device) / "models")
        bad = [n for n in models.numbers() if models.is_bad(models.manifest(n).weights)]
        assert [models.manifest(n).round for n in bad] == [1]
