"""Forged and repeated messages on a real broker: no process ends, and the run is what it would be.

The attacker writes JSON by hand, so that it can also say what the protocol does not allow.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.credentials.signing_keys import make_keys
from fededge.flat import Layout
from fededge.model_spec import ModelSpec
from fededge.models import meta_network
from fededge.wire.messages import Status, TaskMessage
from fededge.wire.signing import sign
from tests.integration.attacker import Attacker
from tests.integration.test_security import history, undisturbed

if TYPE_CHECKING:
    from fededge._internal.processes import Child
    from fededge.wire.messages import State
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

ROUNDS, EPOCHS = 2, 2
ZEROS = "0" * 32
"""An instance that is smaller than any other."""

FATAL = {"kind": "refused", "version": "", "reason": "forged", "chunks": [], "fatal": True}
"""A refusal for good, as an older protocol had it."""

with_and_without_a_key = pytest.mark.parametrize("key", [True, False], ids=["key", "no key"])


class Fleet:
    """A coordinator and the devices `box` and `other`, which trust its key or have none."""

    def __init__(self, federation: Federation, folder: Path, key: bool) -> None:
        self.federation = federation
        self.signing: dict[str, Any] = {}
        self.trusting: dict[str, Any] = {}
        if key:
            make_keys(folder / "a.key", folder / "a.pub")
            self.signing["signing_key"] = str(folder / "a.key")
            self.trusting["trusted_key"] = str(folder / "a.pub")
        self.agents: list[Child] = []

    def coordinator(self) -> Child:
        return self.federation.coordinator(
            rounds={"count": ROUNDS, "min_devices": 2, "quorum": 2, "deadline": 15.0},
            training={"epochs": EPOCHS},
            **self.signing,
        )

    def agent(self, device: str) -> Child:
        """One that is ready."""
        index = ("box", "other").index(device)
        agent = self.federation.agent(device, index=index, **self.trusting)
        self.federation.wait_for(lambda: "ready:" in agent.said(), f"'{device}' to be ready")
        self.agents.append(agent)
        return agent

    def finishes(self, coordinator: Child) -> None:
        """All rounds, with the models of a run that nobody disturbed; nobody has ended before."""
        assert coordinator.exit_code in (None, 0), coordinator.said(20)
        assert self.federation.ended(coordinator) == 0, coordinator.said(20)
        for agent in self.agents:
            assert agent.exit_code is None, agent.said(20)
        expected = undisturbed(self.federation, ROUNDS, "box", "other", epochs=EPOCHS)
        assert history(self.federation) == expected


def reply(state: State, kind: str, **fields: Any) -> dict[str, Any]:
    made = {"kind": kind, "version": state.version, "reason": "forged", "chunks": []}
    return {**made, "device": "box", "run": state.run, **fields}


def test_forged_replies_drop_nothing(
    federation: Federation, attacker: Attacker, tmp_path: Path
) -> None:
    """Before, during and after every turn: refusals for good, and answers of every kind."""
    fleet = Fleet(federation, tmp_path, key=True)
    coordinator = fleet.coordinator()
    fleet.agent("box")
    fleet.agent("other")
    other_key = {"signature": "0a" * 64}
    while coordinator.exit_code is None:
        for state in attacker.repeatedly(0.5):
            attacker.device("reply", FATAL)
            for kind in ("accepted", "late", "refused"):
                attacker.device("reply", reply(state, kind))
                attacker.device("reply", reply(state, kind, **other_key))
    fleet.finishes(coordinator)


def test_a_forged_refusal_for_good_without_a_key(
    federation: Federation, attacker: Attacker, tmp_path: Path
) -> None:
    fleet = Fleet(federation, tmp_path, key=False)
    coordinator = fleet.coordinator()
    fleet.agent("box")
    for state in attacker.repeatedly(3.0):
        attacker.device("reply", FATAL)
        for fields in ({"fatal": True}, {"version": ""}, {"version": "", "fatal": True}, {}):
            attacker.device("reply", reply(state, "refused", **fields))
    fleet.agent("other")
    fleet.finishes(coordinator)


def forged_statuses(box: Status) -> list[dict[str, Any] | bytes]:
    """Forged statuses in the name of a device."""
    fields: dict[str, Any] = msgspec.to_builtins(box)
    return [
        {**fields, "instance": ZEROS},
        {**fields, "instance": ""},
        {**fields, "layout": "cd" * 32},
        {**fields, "online": False, "activity": "offline"},
        {**fields, "activity": "unable", "problem": "forged"},
        b"garbage",
        b"",
    ]


@with_and_without_a_key
def test_forged_statuses_end_nobody_and_do_not_stand(
    federation: Federation, attacker: Attacker, tmp_path: Path, key: bool
) -> None:
    fleet = Fleet(federation, tmp_path, key)
    coordinator = fleet.coordinator()
    agent = fleet.agent("box")
    box = federation.wait_for(
        lambda: [s for s in attacker.statuses() if s.activity == "ready"], "its status"
    )[-1]
    for _ in attacker.repeatedly(3.0):
        for forged in forged_statuses(box):
            attacker.device("status", forged)

    def named() -> bool:
        said = [s for s in attacker.statuses() if s.instance == box.instance]
        return f"or poses as it ({ZEROS})" in said[-1].problem

    federation.wait_for(named, "the rival to be named")
    assert "another agent runs as device 'box'" in agent.said()
    lines = agent.log.read_text().count("another agent runs")
    assert lines < 5, "at a bounded rate"

    def own_word() -> bool:
        last = attacker.statuses()[-1]
        return (last.instance, last.activity, last.online) == (box.instance, "ready", True)

    federation.wait_for(own_word, "its own word to be the last")
    fleet.agent("other")
    fleet.finishes(coordinator)


@with_and_without_a_key
def test_forged_presences_end_no_coordinator(
    federation: Federation, attacker: Attacker, tmp_path: Path, key: bool
) -> None:
    fleet = Fleet(federation, tmp_path, key)
    coordinator = fleet.coordinator()
    federation.wait_for(attacker.states, "the coordinator to run")
    topic = f"{attacker.topics.coordinator}/status"

    def presences() -> list[dict[str, Any]]:
        found = []
        for message in attacker.hears("coordinator status"):
            with contextlib.suppress(ValueError):
                found.append(json.loads(message.payload))
        return [fields for fields in found if fields.get("instance") not in ("", ZEROS)]

    true = presences()[-1]
    nonces = [json.loads(m.payload) for m in attacker.hears("coordinator claim")]
    for _ in attacker.repeatedly(8.0):
        nonces = [json.loads(m.payload) for m in attacker.hears("coordinator claim")]
        for instance in ("", ZEROS):
            for nonce in ("", *(claim.get("nonce", "") for claim in nonces)):
                forged = {**true, "instance": instance, "answers": nonce}
                attacker.says(topic, forged, retain=True)
                attacker.says(topic, {"instance": instance, "online": True, "answers": nonce})
        attacker.says(topic, {**true, "online": False}, retain=True)
        attacker.says(topic, b"", retain=True)
        assert coordinator.exit_code is None, coordinator.said(20)
    assert "another coordinator of federation" in coordinator.said()
    assert coordinator.log.read_text().count("another coordinator of") < 5, "at a bounded rate"
    fleet.agent("box")
    fleet.agent("other")
    fleet.finishes(coordinator)
    last = presences()[-1]
    assert (last["instance"], last["online"]) == (true["instance"], False), "its own last words"


@with_and_without_a_key
def test_leftovers_and_garbage_keep_no_coordinator_from_starting(
    federation: Federation, attacker: Attacker, tmp_path: Path, key: bool
) -> None:
    topic = f"{attacker.topics.coordinator}/status"
    for garbage in (b"garbage", {"instance": "", "online": True, "answers": ""}):
        attacker.says(topic, garbage, retain=True)
    fleet = Fleet(federation, tmp_path, key)
    coordinator = fleet.coordinator()
    fleet.agent("box")
    fleet.agent("other")
    fleet.finishes(coordinator)


def foreign_states(state: State) -> list[dict[str, Any]]:
    """States that a device with Fashion-MNIST's ten labels cannot serve."""
    fields: dict[str, Any] = msgspec.to_builtins(state)
    model = fields["model"]
    labels = [f"label {number}" for number in range(10)]
    texts = {"name": "fasttext", "shape": [8], "mean": [], "std": [], "labels": labels}
    return [
        {**fields, "model": {**model, "labels": labels}},
        {**fields, "layout": "cd" * 32},
        {**fields, "model": {**model, "name": "nosuch"}},
        {**fields, "model": {**model, "shape": [1, 8192, 8192]}},
        {**fields, "method": "nosuch"},
        {**fields, "encoding": "float8"},
        {**fields, "model": {**model, **texts, "vocabulary": 10_000_000}},
        {**fields, "model": {**model, **texts, "vocabulary": 2**31}},
    ]


@with_and_without_a_key
def test_forged_states_change_nothing_while_the_coordinator_runs(
    federation: Federation, attacker: Attacker, tmp_path: Path, key: bool
) -> None:
    fleet = Fleet(federation, tmp_path, key)
    coordinator = fleet.coordinator()
    agent = fleet.agent("box")
    for state in [*attacker.repeatedly(3.0, pause=0.5)]:
        for forged in foreign_states(state):
            attacker.says(attacker.topics.state, forged, retain=True)
    assert agent.exit_code is None, agent.said(20)
    fleet.agent("other")
    fleet.finishes(coordinator)
    assert agent.log.read_text().count("ready:") == 1, "it had nothing to prepare anew"


def most_memory(child: Child) -> int:
    """Bytes that a process has had resident at most."""
    text = Path(f"/proc/{child.pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def test_a_state_that_it_cannot_serve_makes_a_device_unable_until_the_true_one_is_back(
    federation: Federation, attacker: Attacker, tmp_path: Path
) -> None:
    """Nobody contradicts, for the coordinator is down, and the device has no key."""
    fleet = Fleet(federation, tmp_path, key=False)
    coordinator = fleet.coordinator()
    agent = fleet.agent("box")
    state = attacker.states()[-1]
    coordinator.kill()
    before = most_memory(agent)
    *_, texts, beyond = foreign_states(state)
    spec = msgspec.convert(texts["model"], ModelSpec)
    fitting = {"layout": Layout.of(meta_network(spec)).hash}
    for forged in (texts | fitting, beyond | fitting):
        attacker.says(attacker.topics.state, forged, retain=True)

    def unable() -> bool:
        return attacker.statuses()[-1].activity == "unable"

    federation.wait_for(unable, "the device to be unable")
    assert (
        "this device allows" in attacker.statuses()[-1].problem or attacker.statuses()[-1].problem
    )
    assert most_memory(agent) < before + 200 * 2**20
    again = fleet.coordinator()
    federation.wait_for(lambda: attacker.statuses()[-1].activity == "ready", "it to be ready")
    fleet.agent("other")
    fleet.finishes(again)


def forged_tasks(state: State) -> list[dict[str, Any]]:
    """Round 9 for the version of round 1, as an older protocol had it; and by anybody's key."""
    task = TaskMessage("box", state.run, state.version)
    signed = sign(task, Ed25519PrivateKey.generate())
    return [
        {"device": "box", "round": 9, "version": state.version},
        msgspec.to_builtins(task),
        msgspec.to_builtins(signed),
    ]


@with_and_without_a_key
def test_a_forged_task_wastes_a_turn_at_most(
    federation: Federation, attacker: Attacker, tmp_path: Path, key: bool
) -> None:
    """It comes before the round is open. With a key nobody trains for it."""
    fleet = Fleet(federation, tmp_path, key)
    coordinator = fleet.coordinator()
    agent = fleet.agent("box")
    for state in attacker.repeatedly(3.0):
        for forged in forged_tasks(state):
            attacker.device("task", forged)
    assert ("training from" in agent.log.read_text()) == (not key)
    fleet.agent("other")
    fleet.finishes(coordinator)
    assert agent.log.read_text().count("training from") == ROUNDS, "each turn was taken once"


def test_a_replayed_task_or_reply_has_no_effect_on_any_device(
    federation: Federation, attacker: Attacker, tmp_path: Path
) -> None:
    """Every genuine task and reply comes again, to the device that it was for and to the other."""
    fleet = Fleet(federation, tmp_path, key=True)
    coordinator = fleet.coordinator()
    agents = [fleet.agent("box"), fleet.agent("other")]
    while coordinator.exit_code is None:
        for kind in ("task", "reply"):
            for message in attacker.hears(kind)[-20:]:
                for device in ("box", "other"):
                    attacker.device(kind, message.payload, device)
    fleet.finishes(coordinator)
    for agent in agents:
        assert agent.log.read_text().count("training from") == ROUNDS, "each turn was taken once"
        assert " dropped: it is for device " in agent.log.read_text()


def test_nobody_can_take_a_devices_place_at_the_broker(
    federation: Federation, attacker: Attacker, tmp_path: Path
) -> None:
    """The end of its client id is a secret: what the status tells is another word."""
    fleet = Fleet(federation, tmp_path, key=False)
    coordinator = fleet.coordinator()
    agent = fleet.agent("box")
    instance = attacker.statuses()[-1].instance
    impostor = Attacker(federation, f"fededge-{federation.name}-box-{instance[:16]}")
    fleet.agent("other")
    fleet.finishes(coordinator)
    impostor.session.stop()
    assert " lost (" not in agent.log.read_text(), "nobody threw it off"
