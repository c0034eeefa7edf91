"""Settings change while real processes run: an order that a killed coordinator keeps."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from fededge._internal.processes import Child
from fededge.cli import main
from fededge.credentials.signing_keys import make_keys
from fededge_server.store import Change, Role, Store
from tests.integration.test_federation import rounds_done, versions

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

NEW = {
    'method = "fedavg"': 'method = "scaffold"',
    'encoding = "float32"': 'encoding = "float16+delta"',
    "lr = 0.01": "lr = 0.02",
}


def send(agents: list[Child], number: signal.Signals) -> None:
    for agent in agents:
        assert agent.pid is not None
        os.kill(agent.pid, number)


def test_a_killed_coordinator_keeps_an_order_and_the_agents_follow(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agents stand still meanwhile, so that the round stays open until the order is given."""
    make_keys(federation.folder / "signing.key", federation.folder / "signing.pub")
    sections: dict[str, Any] = {
        "method": "fedavg",
        "training": {"lr": 0.01},
        "transfer": {"encoding": "float32"},
        "rounds": {"count": 0, "min_devices": 2, "quorum": 2},
        "signing_key": str(federation.folder / "signing.key"),
    }
    trusted = str(federation.folder / "signing.pub")
    first = federation.coordinator(**sections)
    agents = [federation.agent(f"box-{i}", index=i, trusted_key=trusted) for i in range(2)]
    federation.wait_for(lambda: rounds_done(federation) >= 1, "a round to end")
    send(agents, signal.SIGSTOP)
    store = Store(federation.state("coordinator"))
    federation.wait_for(lambda: len(store.roster()[0]) == 2, "an open round")

    file = federation.folder / "coordinator" / "config.toml"
    text = file.read_text()
    for before, after in NEW.items():
        assert before in text
        text = text.replace(before, after)
    (file.parent / "new.toml").write_text(text)
    assert main(["apply", "--config", str(file.parent / "new.toml"), "--yes"]) == 0
    said = capsys.readouterr().out
    assert "training.lr" in said
    assert "scaffold.c_i" in said
    assert Role.ORDERED in store.settings()
    first.kill()
    done = rounds_done(federation)

    second = federation.coordinator(**sections)
    send(agents, signal.SIGCONT)

    def changed() -> list[Change]:
        return [change for change in store.changes() if change.kind == "settings"]

    federation.wait_for(changed, "the settings to change")
    (change,) = changed()
    assert change.round >= done + 2, "the open round ended first, with the old settings"
    assert Role.ORDERED not in store.settings()
    federation.wait_for(lambda: rounds_done(federation) >= change.round + 2, "two rounds more")
    record = store.rounds()[change.round + 1]
    assert record.participants == 2
    assert second.exit_code is None
    for agent in agents:
        assert "method scaffold" in agent.said(100)
        assert agent.exit_code is None
    assert versions(federation)[change.round].startswith(f"{change.round:06d}")
    assert main(["history", "--config", str(file)]) == 0
    said = capsys.readouterr().out
    assert "training.lr: 0.01 -> 0.02" in said
