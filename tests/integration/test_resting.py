"""A resting box in a real federation: it reports the reason, and the rounds go on without it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fededge.cli import main
from tests.trainers import children_of

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow


def later() -> str:
    """An hour of the day that does not begin before long."""
    start = datetime.now() + timedelta(hours=11)
    return f"{start:%H}:00-{start + timedelta(hours=1):%H}:30"


def test_rounds_go_on_without_a_device_that_rests(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    hours = later()
    coordinator = federation.coordinator(rounds={"count": 2, "min_devices": 3, "quorum": 2})
    resting = federation.agent("night", 2, 3, hardware={"when": {"hours": (hours,)}})
    others = [federation.agent(name, index, 3) for index, name in enumerate(("one", "two"))]
    assert federation.ended(coordinator) == 0
    assert resting.pid is not None
    assert not children_of(resting.pid), "torch was imported on a box that rests"
    assert "training from" not in resting.said(100)
    assert all("round 2: training from" in other.said(100) for other in others)
    assert f"night: rests: it is outside the hours {hours}" in coordinator.said(100)
    said = _told(federation, capsys)["night"]
    assert (said["activity"], said["problem"]) == ("resting", f"it is outside the hours {hours}")


def _told(federation: Federation, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The devices as `fededge status` shows them."""
    config = str(federation.folder / "night" / "config.toml")
    code = main(["status", "--config", config, "--json"])
    said = capsys.readouterr().out
    devices: dict[str, Any] = json.loads(said)["devices"] if code == 0 else {}
    return devices


@pytest.mark.skipif(Path("/var/lib/nvpmodel/status").exists(), reason="this is a Jetson")
def test_a_condition_without_a_sensor_is_one_sentence(federation: Federation) -> None:
    agent = federation.agent("box", hardware={"when": {"power_modes": (0,)}})
    assert federation.ended(agent) == 2
    said = agent.said()
    assert "hardware.when.power_modes is set, but this box shows no power mode of nvpmodel" in said
    assert "Traceback" not in said
