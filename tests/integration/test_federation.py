"""A coordinator and agents as processes on a real Mosquitto: rounds, refusals, failures."""

from __future__ import annotations

import contextlib
import csv
import json
import queue
import sqlite3
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fededge.cli.operation.audit import read_ledger
from fededge.config import BrokerConfig
from fededge.errors import StoreError
from fededge.export import ModelRegistry, predict, session
from fededge.transport.session import Incoming, Session
from fededge.wire.chunks import MAGIC
from fededge.wire.messages import Manifest, Reply, Report, Status, decode, encode
from fededge.wire.topics import Topics
from fededge_server.store import Store

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow


class Listener:
    """Everything that the broker carries for one federation."""

    def __init__(self, federation: Federation) -> None:
        self.topics = Topics(federation.name)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.session = Session(
            BrokerConfig(**federation.broker), f"listener-{federation.name}", self.inbox
        )
        self.session.subscribe(f"{self.topics.root}/#")
        self.session.start()
        self.seen: list[Incoming] = []

    def messages(self, kind: str, quiet: float = 0.3) -> list[Incoming]:
        """The messages of this kind, once none has come for a moment."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self.inbox.get(timeout=quiet)
                if isinstance(event, Incoming):
                    event.ack()
                    self.seen.append(event)
        return [m for m in self.seen if m.payload and self.topics.parse(m.topic).kind == kind]


def versions(federation: Federation, name: str = "coordinator") -> list[str]:
    return [entry.version for entry in Store(federation.state(name)).history()]


def rounds_done(federation: Federation) -> int:
    """The number of rounds in the journal; 0 while it is being created."""
    try:
        return max(0, len(versions(federation)) - 1)
    except StoreError:
        return 0


def test_two_agents_finish_their_rounds_and_hold_a_model_for_apps(federation: Federation) -> None:
    listener = Listener(federation)
    coordinator = federation.coordinator(rounds={"count": 2, "min_devices": 2})
    agents = [federation.agent(f"box-{i}", index=i) for i in range(2)]
    assert federation.ended(coordinator) == 0, coordinator.said(20)
    for agent in agents:
        agent.terminate()
    assert [federation.ended(agent) for agent in agents] == [0, 0]

    assert rounds_done(federation) == 2
    for device in ("box-0", "box-1"):
        models = ModelRegistry(federation.state(device) / "models")
        manifest = models.current()
        assert manifest is not None
        assert manifest.device == device
        with open(federation.state(device) / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["round"] for row in rows] == ["0", "1"]
        assert all(float(row["kl"]) > 0 and float(row["seconds"]) > 0 for row in rows)
        _, height, width = manifest.input.shape
        path = Path(models.folder / "current" / "model.onnx")
        out = predict(session(path), torch.zeros(3, 1, height, width, dtype=torch.uint8))
        assert out.shape == (3, 10)
        assert torch.allclose(out.sum(1), torch.ones(3))

    last = [decode(m.payload, Status) for m in listener.messages("status")]
    assert {s.device for s in last if not s.online} == {"box-0", "box-1"}


def test_the_ledger_is_exactly_what_the_broker_carried(federation: Federation) -> None:
    """The bytes in an agent's ledger are those that another client sees from its topics."""
    listener = Listener(federation)
    coordinator = federation.coordinator(rounds={"count": 2, "min_devices": 1})
    agent = federation.agent("box", devices=1)
    assert federation.ended(coordinator) == 0
    agent.terminate()
    assert federation.ended(agent) == 0

    def farewells() -> list[Incoming]:
        statuses = listener.messages("status")
        return [m for m in statuses if not decode(m.payload, Status).online]

    federation.wait_for(farewells, "the agent's last words")
    # A small update travels with its report: they are counted together.
    carried: dict[str, int] = {"status": 0, "claim": 0, "turn": 0}
    of_a_turn = dict.fromkeys(("report", "update", "scalar", "tensor", "framing"), "turn")
    for message in listener.seen:
        address = listener.topics.parse(message.topic)
        kind = of_a_turn.get(address.kind, address.kind)
        if address.device == "box" and kind in carried:
            carried[kind] += len(message.payload)
    ledger = read_ledger(federation.state("box") / "ledger.json")
    booked = dict.fromkeys(carried, 0)
    for field, count in ledger.items():
        kind = field.split()[0]
        booked[of_a_turn.get(kind, kind)] += count
    assert booked == carried
    assert all(booked.values())


def test_a_second_coordinator_is_refused(federation: Federation) -> None:
    first = federation.coordinator(rounds={"min_devices": 5})
    path = federation.state("coordinator") / "journal.sqlite"
    federation.wait_for(lambda: path.exists() and "version" in first.said(), "the first to run")
    second = federation.coordinator("second")
    assert federation.ended(second) == 2
    assert f"a coordinator of federation '{federation.name}' is already running" in second.said()
    assert first.exit_code is None


def test_a_second_agent_with_the_same_id_is_refused(federation: Federation) -> None:
    federation.coordinator(rounds={"min_devices": 5})
    first = federation.agent("box")
    federation.wait_for(lambda: "ready" in first.said(), "the first agent to be ready")
    second = federation.agent("box", folder="second")
    assert federation.ended(second) == 2
    assert f"device 'box' of federation '{federation.name}' is already running" in second.said()
    assert first.exit_code is None


def test_an_agent_with_another_layout_says_both_hashes_and_stays(federation: Federation) -> None:
    listener = Listener(federation)
    federation.coordinator(rounds={"min_devices": 5})
    agent = federation.agent("box", model={"name": "mlpnet"})

    def unable() -> list[Status]:
        statuses = [decode(m.payload, Status) for m in listener.messages("status")]
        return [status for status in statuses if status.activity == "unable"]

    said = federation.wait_for(unable, "the agent to say that it is unable")[0].problem
    assert "network mlpnet has layout" in said
    hashes = [word.strip(",:") for word in said.split() if len(word.strip(",:")) == 64]
    assert len(set(hashes)) == 2
    assert agent.exit_code is None


def test_a_killed_agent_does_not_stop_the_round_and_rejoins(federation: Federation) -> None:
    """kill -9 in mid-round: the round ends at its deadline with the other one's update; started
    again, the agent takes part in a later round.
    """
    coordinator = federation.coordinator(
        # More rounds than the test waits for: a slow machine takes long to start an agent again.
        rounds={"count": 1000, "min_devices": 1, "quorum": 1, "deadline": 12.0},
        training={"epochs": 60},
    )
    steady = federation.agent("steady", index=0)
    federation.wait_for(lambda: "round 1: training" in steady.said(), "the first round")
    # A second device joins, is asked in round 2, and dies while it trains.
    doomed = federation.agent("doomed", index=1)
    federation.wait_for(lambda: ": training from" in doomed.said(), "the doomed agent to train")
    during = rounds_done(federation)
    doomed.kill()
    federation.wait_for(lambda: rounds_done(federation) > during, "the round to end")
    reports = _reports(federation)[during]
    assert set(reports) == {"steady"}
    again = federation.agent("doomed", index=1)
    federation.wait_for(
        lambda: any("doomed" in r for r in _reports(federation)[during + 1 :]), "a round with both"
    )
    assert (coordinator.exit_code, again.exit_code) == (None, None)
    assert "doomed: joined" in coordinator.log.read_text().split("doomed: left")[-1]


def _reports(federation: Federation) -> list[dict[str, Any]]:
    path = federation.state("coordinator") / "journal.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
        rows = journal.execute("SELECT reports FROM rounds ORDER BY number").fetchall()
    return [json.loads(row[0]) for row in rows[1:]]


def test_an_update_for_another_version_is_refused_with_a_reason(federation: Federation) -> None:
    """A forged report names a version that is not the round's: the device is told why."""
    listener = Listener(federation)
    federation.coordinator(rounds={"min_devices": 1, "count": 1000}, training={"epochs": 100})
    agent = federation.agent("box", devices=1)
    federation.wait_for(lambda: "training from" in agent.said(), "a round to be open")
    state = json.loads(listener.messages("state")[-1].payload)
    report = Report(
        device="box",
        run=state["run"],
        version="000009-0123456789abcdef",
        layout=state["layout"],
        manifest=Manifest(1, 256 * 1024, 1000, "0" * 64),
        scalars={"examples": 10.0},
    )
    listener.session.publish(listener.topics.device("box", "report"), encode(report))

    def refusals() -> list[Reply]:
        replies = [decode(m.payload, Reply) for m in listener.messages("reply")]
        return [r for r in replies if r.version == report.version]

    reply = federation.wait_for(refusals, "a reply")[0]
    assert reply.kind == "refused"
    assert report.version in reply.reason
    assert state["version"] in reply.reason


@pytest.mark.parametrize("chunk_bytes", [1 << 14, 1 << 18], ids=["chunks", "with its report"])
def test_every_topic_but_chunks_is_readable_json(
    federation: Federation, tmp_path: Path, chunk_bytes: int
) -> None:
    """`mosquitto_sub -v`, as an operator would use it, shows JSON on every topic but the chunks.

    If an update fits a chunk, that follows the JSON of its report in the next line.
    """
    command = ["mosquitto_sub", "-h", federation.broker["host"], "-p"]
    command += [str(federation.broker["port"]), "-t", f"fededge/v1/{federation.name}/#"]
    output = tmp_path / "seen.txt"
    with output.open("wb") as file:
        subscriber = subprocess.Popen([*command, "-F", "%t %x"], stdout=file)
    coordinator = federation.coordinator(
        rounds={"count": 1, "min_devices": 1}, transfer={"chunk_bytes": chunk_bytes}
    )
    federation.agent("box", devices=1)
    assert federation.ended(coordinator) == 0
    federation.wait_for(lambda: "/reply " in output.read_text(), "the reply to be seen")
    subscriber.terminate()
    subscriber.wait(10)
    topics = Topics(federation.name)
    kinds, attached = set(), False
    for line in output.read_text().splitlines():
        topic, _, payload = line.partition(" ")
        kind = topics.parse(topic).kind
        kinds.add(kind)
        if kind not in ("model", "update") and payload:
            first, *rest = bytes.fromhex(payload).split(b"\n", 1)
            assert isinstance(json.loads(first), dict)
            assert not rest or (kind == "report" and rest[0].startswith(MAGIC))
            attached |= bool(rest)
    assert kinds >= {"state", "status", "task", "report", "reply", "model"}
    fits = chunk_bytes == 1 << 18
    assert ("update" in kinds, attached) == (not fits, fits)


def test_an_interrupted_run_goes_on_where_it_stood(federation: Federation) -> None:
    """A coordinator that is killed and started again continues with the next round, same run."""
    rounds = {"count": 4, "min_devices": 1}
    first = federation.coordinator(rounds=rounds, training={"epochs": 20})
    federation.agent("box", devices=1)
    federation.wait_for(lambda: rounds_done(federation) >= 1, "a round to end")
    first.kill()
    done = versions(federation)
    second = federation.coordinator(rounds=rounds, training={"epochs": 20})
    assert federation.ended(second) == 0, second.said(20)
    assert versions(federation)[: len(done)] == done
    assert rounds_done(federation) == 4


def test_a_run_with_another_seed_is_refused_with_the_difference(federation: Federation) -> None:
    first = federation.coordinator(rounds={"min_devices": 5})
    federation.wait_for(lambda: "version" in first.said(), "the run to begin")
    first.terminate()
    assert federation.ended(first) == 0
    second = federation.coordinator(rounds={"min_devices": 5}, seed=7)
    assert federation.ended(second) == 2
    assert "begun with seed = 0, the configuration now says seed = 7" in second.said()
