"""The operator's commands: `fededge status` over a real broker, `fededge audit` from the ledger."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fededge.cli import main
from fededge.cli.operation.audit import read_ledger
from fededge.config import CoordinatorConfig, template

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow


def test_status_and_audit_tell_what_happened(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a coordinator waits for a device that never comes, and after a federation's end."""
    waiting = federation.coordinator(rounds={"count": 1, "min_devices": 2})
    agent = federation.agent("box-0")
    config = str(federation.folder / "coordinator" / "config.toml")

    def told() -> dict[str, object] | None:
        code = main(["status", "--config", config, "--json"])
        said = capsys.readouterr().out
        devices = json.loads(said)["devices"] if code == 0 else {}
        ready = devices.get("box-0", {}).get("activity") == "ready"
        return json.loads(said) if ready else None

    seen = federation.wait_for(told, "box-0 to be ready")
    assert seen["coordinator"] is True
    assert seen["state"]["phase"] == "waiting"
    assert seen["state"]["round"] == 0

    federation.agent("box-1", index=1)
    assert federation.ended(waiting) == 0
    assert main(["status", "--config", str(federation.folder / "box-0" / "config.toml")]) == 0
    said = capsys.readouterr().out
    assert "coordinator offline" in said
    assert "done: 1 of 1 rounds done" in said
    assert "box-1" in said

    agent.terminate()
    federation.ended(agent)
    ours = federation.folder / "box-0" / "config.toml"
    assert main(["audit", "--config", str(ours), "--json"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    assert ledger == read_ledger(federation.state("box-0") / "ledger.json")
    assert main(["audit", "--config", str(ours)]) == 0
    said = capsys.readouterr().out
    tensors = sum(count for name, count in ledger.items() if name.startswith("tensor "))
    assert tensors > 100_000
    assert f"{tensors:,}" in said
    assert f"{sum(ledger.values()):,}" in said


def test_a_federation_that_the_broker_does_not_know_is_one_sentence(
    federation: Federation, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "coordinator.toml"
    broker = "".join(f"{key} = {json.dumps(value)}\n" for key, value in federation.broker.items())
    path.write_text(f'federation = "nobody"\nstate = "state"\n[broker]\n{broker}')
    assert main(["status", "--config", str(path)]) != 0
    assert "the broker has no messages of a federation 'nobody'" in capsys.readouterr().err


def test_a_coordinator_whose_rounds_are_done_stays_and_serves_the_last_version(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"federation": federation.name, "state": "state", "broker": federation.broker}
    values |= {"data": {"source": "npz", "root": str(federation.images)}}
    values |= {"rounds": {"count": 1, "min_devices": 1}}
    coordinator = federation.begin("coordinator", staying, template(CoordinatorConfig, values))
    federation.agent("box-0")
    config = str(federation.folder / "coordinator" / "config.toml")

    def done() -> bool:
        code = main(["status", "--config", config, "--json"])
        said = capsys.readouterr().out
        state = json.loads(said)["state"] if code == 0 else None
        return state is not None and state["phase"] == "done"

    federation.wait_for(done, "the round to be done")
    federation.agent("box-1", index=1)
    federation.wait_for(lambda: "box-1: joined" in coordinator.said(30), "box-1 to be heard")
    assert coordinator.exit_code is None
    coordinator.terminate()
    assert federation.ended(coordinator) == 0


def staying(path: Path) -> list[str]:
    return [sys.executable, "-m", "fededge", "coordinator", "--config", str(path)]
