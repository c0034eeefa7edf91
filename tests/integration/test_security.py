"""An attacker on a real broker: forged states, repeated updates, and what logs must not say."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import (
    AgentConfig,
    CoordinatorConfig,
    DataConfig,
    ModelConfig,
    TrainingConfig,
    template,
)
from fededge.credentials.signing_keys import make_keys
from fededge.data.local import experiment_data, share_examples
from fededge.flat import FlatModel
from fededge.methods import Hyper
from fededge.models import build_for
from fededge.simulation import Setup, Simulation
from fededge.wire import chunks, reports
from fededge.wire.messages import (
    Reply,
    State,
    decode,
    encode,
)
from fededge.wire.signing import sign
from fededge_server.store import Store
from tests.service_commands import ENDS

if TYPE_CHECKING:
    from tests.integration.attacker import Attacker
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

EPOCHS = 5


def test_states_and_models_that_the_coordinator_did_not_sign_are_refused(
    federation: Federation, attacker: Attacker, tmp_path: Path
) -> None:
    """A device with a key stays up, says what is wrong, and trains from the true model alone."""
    make_keys(tmp_path / "a.key", tmp_path / "a.pub")
    coordinator = federation.coordinator(
        signing_key=str(tmp_path / "a.key"),
        rounds={"count": 1, "min_devices": 2},
    )
    agent = federation.agent("box", trusted_key=str(tmp_path / "a.pub"))
    old = federation.wait_for(attacker.states, "a state")[0]
    federation.wait_for(lambda: "ready:" in agent.said(), "the agent to be ready")

    def refused(state: State, why: str) -> None:
        before = len(attacker.problems())
        attacker.forges(state)

        def said() -> bool:
            return any(why in problem for problem in attacker.problems()[before:])

        federation.wait_for(said, f"a status that says '{why}'")
        federation.wait_for(lambda: attacker.problems()[-1] == "", "the true state to be back")

    poison = b"poison" * 1000
    facts = chunks.manifest(poison, old.manifest.chunk_bytes)
    fake = msgspec.structs.replace(
        old, version="000009-0123456789abcdef", round=9, manifest=facts, issued=old.issued + 1
    )
    attacker.session.publish(
        attacker.topics.model(fake.version, 0), chunks.pack(poison, facts, 0), retain=True
    )
    refused(msgspec.structs.replace(fake, signature=""), "the message is not signed;")
    refused(fake, "the message is not signed by a key that this device trusts")
    refused(
        sign(fake, Ed25519PrivateKey.generate()),
        "the message is not signed by a key that this device trusts",
    )
    refused(old, "it is older than one that this device has seen")
    federation.agent("other", index=1)
    assert federation.ended(coordinator) == 0, coordinator.said(20)

    assert agent.exit_code is None
    versions = [entry.version for entry in Store(federation.state("coordinator")).history()]
    assert len(versions) == 2
    trained = [line for line in agent.log.read_text().splitlines() if "training from" in line]
    assert [line.split()[-1] for line in trained] == versions[:1]


def test_an_old_update_that_is_repeated_changes_nothing(
    federation: Federation, attacker: Attacker
) -> None:
    """All that a device sent in round 1 is sent again, later, by somebody who has heard it."""
    federation.coordinator(rounds={"count": 1000, "min_devices": 1}, training={"epochs": EPOCHS})
    federation.agent("box", devices=1)

    def current() -> str:
        return attacker.states()[-1].version

    federation.wait_for(attacker.states, "a state")
    first = federation.wait_for(lambda: attacker.hears("report"), "a report")[0]
    report, chunk = reports.split(first.payload)
    federation.wait_for(lambda: current() > report.version, "the next round")
    pieces = [m for m in attacker.hears("update") if report.version in m.topic]
    assert len(pieces) + bool(chunk) >= report.manifest.chunks
    answered = len(attacker.hears("reply"))

    def answers() -> list[Reply]:
        replies = [decode(m.payload, Reply) for m in attacker.hears("reply")[answered:]]
        return [reply for reply in replies if reply.version == report.version]

    for message in (first, *pieces):
        attacker.session.publish(message.topic, message.payload)
    reply = federation.wait_for(answers, "an answer")[0]
    # The last accepted update is answered as before, older ones with `late`.
    assert reply.kind in ("accepted", "late")

    # The same bytes as an update of the round that is open: the scalars are those of the old one.
    moved = msgspec.structs.replace(report, run="another-run")
    attacker.session.publish(first.topic, encode(moved))
    refusal = federation.wait_for(
        lambda: [r for r in answers() if r.kind == "refused"], "a refusal"
    )[0]
    assert "another run" in refusal.reason
    done = len(history(federation))
    federation.wait_for(lambda: len(history(federation)) > done + 1, "two more rounds")
    assert history(federation) == undisturbed(federation, len(history(federation)) - 1, "box")


def history(federation: Federation) -> list[str]:
    """The SHA-256 of every model of the run."""
    return [entry.sha256 for entry in Store(federation.state("coordinator")).history()]


def undisturbed(
    federation: Federation, rounds: int, *names: str, epochs: int = EPOCHS
) -> list[str]:
    """The models of the same run without an attacker, simulated."""
    root, count = str(federation.images), len(names)
    data = DataConfig(source="npz", root=root, split="dirichlet:0.5", devices=count)
    spec, train, test = experiment_data(ModelConfig(), data)
    devices = dict(zip(names, share_examples(train, data), strict=True))
    hyper = Hyper(**msgspec.structs.asdict(TrainingConfig(epochs=epochs)))
    simulation = Simulation(Setup("fedavg", spec, hyper, 0, devices, test.x, test.y))
    sha256 = simulation.layout.sha256
    first = sha256(FlatModel(build_for(spec, 0)).vector)
    return [first, *(sha256(done.model) for done in simulation.rounds(rounds))]


PASSWORD = "correct-horse-battery-staple"


def test_no_secret_is_ever_logged(tmp_path: Path, images: Path) -> None:
    """Coordinator and agent at their most talkative, with right and with wrong passwords."""
    make_keys(tmp_path / "a.key", tmp_path / "a.pub")
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    users = {"coordinator": PASSWORD, "box": PASSWORD}
    with Broker(tmp_path / "broker", kind="mosquitto", users=users) as broker:
        where = {"host": broker.host, "port": broker.port, "password_file": str(secret)}
        data = {"source": "npz", "root": str(images)}
        common = {"federation": "quiet", "state": "state", "data": data}
        coordinator = template(
            CoordinatorConfig,
            {
                **common,
                "broker": where | {"username": "coordinator"},
                "rounds": {"count": 1, "min_devices": 1},
                "signing_key": str(tmp_path / "a.key"),
            },
        )
        agent = template(
            AgentConfig,
            {
                **common,
                "device": "box",
                "broker": where | {"username": "box"},
                "trusted_key": str(tmp_path / "a.pub"),
            },
        )
        children = [start(tmp_path, "coordinator", coordinator), start(tmp_path, "agent", agent)]
        try:
            assert ended(children[0]) == 0, children[0].said(30)
            children[1].terminate()
            assert ended(children[1]) == 0, children[1].said(30)
            broker.stop()
            broker.users = {"box": "another"}
            broker.start()
            refused = start(tmp_path, "agent", agent)
            children.append(refused)
            assert ended(refused) == 2
        finally:
            for child in children:
                child.kill()
    key = (tmp_path / "a.key").read_text().splitlines()[1]
    logs = {child.log: child.log.read_text() for child in children}
    assert "refuses user 'box'" in logs[children[1].log]
    texts = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "password"]
    for word in (PASSWORD, key):
        assert [path for path, text in logs.items() if word in text] == []
    assert not any(PASSWORD.encode() in text for text in texts)  # nor kept in a state folder


def start(folder: Path, command: str, config: str) -> Child:
    home = folder / command
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(config)
    program = [sys.executable, "-X", "dev", "-W", "ignore", "-m", "fededge"]
    program += [command, *ENDS[command], "--config", str(home / "config.toml"), "--verbose"]
    child = Child(program, home / "log.txt")
    child.start()
    return child


def ended(child: Child) -> int | None:
    deadline = time.monotonic() + 90
    while child.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return child.exit_code
