"""Models and updates in chunks between real processes: what was sent once is not sent again.

A slow link before the broker leaves the time to kill somebody in the middle of a transfer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fededge.broker.local import Broker
from tests.integration.test_federation import Listener, rounds_done, versions
from tests.link import SlowLink

if TYPE_CHECKING:
    from fededge._internal.processes import Child
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

CHUNK = 1024
MODEL = 195_000
"""Bytes of LeNet, about."""


class Transfer:
    """One round with one device, which sits behind a slow link."""

    def __init__(self, federation: Federation, link: SlowLink) -> None:
        self.federation, self.link = federation, link
        self.start_coordinator()
        self.start_agent()

    def start_coordinator(self) -> None:
        rounds = {"count": 1, "min_devices": 1}
        self.coordinator = self.federation.coordinator(
            rounds=rounds, transfer={"chunk_bytes": CHUNK}
        )

    def start_agent(self) -> None:
        behind = {**self.federation.broker, "port": self.link.port, "wait": 30.0}
        self.agent = self.federation.agent("far", devices=1, broker=behind)

    def reach(self, condition: Callable[[], bool], what: str) -> None:
        self.federation.wait_for(condition, what)

    def finish(self) -> None:
        assert self.federation.ended(self.coordinator) == 0, self.coordinator.said(20)
        assert rounds_done(self.federation) == 1


@pytest.fixture
def link(broker: Broker) -> SlowLink:
    return SlowLink(broker.host, broker.port, delay=0.02, loss=0.0, bits=6e5)


@pytest.mark.parametrize("victim", ["coordinator", "agent"])
def test_no_chunk_of_an_update_is_sent_twice(
    federation: Federation, link: SlowLink, victim: str
) -> None:
    with link:
        listener = Listener(federation)
        run = Transfer(federation, link)

        def seen() -> int:
            return len(listener.messages("update", 0.01))

        run.reach(lambda: seen() > 40, "some chunks of the update")
        child: Child = getattr(run, victim)
        child.kill()
        assert seen() < MODEL // CHUNK, "in the middle of it"
        run.start_coordinator() if victim == "coordinator" else run.start_agent()
        run.finish()
        carried = Counter(message.topic for message in listener.messages("update"))
    assert len(carried) > MODEL // CHUNK - 10
    assert {topic: count for topic, count in carried.items() if count > 1} == {}


@pytest.mark.parametrize("victim", ["coordinator", "agent", "broker"])
def test_no_chunk_of_a_model_is_sent_twice(
    federation: Federation, link: SlowLink, victim: str, tmp_path: Path, broker: Broker
) -> None:
    """Counted on the link: nothing but the model goes down it that is worth counting."""
    with Broker(tmp_path / "own", kind="mosquitto") as own:
        federation.broker = {"host": own.host, "port": own.port, "wait": 30.0}
        with SlowLink(own.host, own.port, delay=0.02, loss=0.0, bits=6e5) as link:
            run = Transfer(federation, link)
            run.reach(lambda: link.bytes_down > 0.6 * MODEL, "a part of the model")
            if victim == "broker":
                own.kill()
                own.start()
            else:
                getattr(run, victim).kill()
                run.start_coordinator() if victim == "coordinator" else run.start_agent()
            assert link.bytes_down < MODEL, "in the middle of it"
            run.finish()
            assert MODEL < link.bytes_down < 1.45 * MODEL, "all of it again would be 1.7"


def test_a_late_joiner_gets_the_model_without_the_coordinator_and_gets_it_once(
    federation: Federation, link: SlowLink
) -> None:
    coordinator = federation.coordinator(rounds={"count": 2, "min_devices": 1})
    early = federation.agent("early", devices=2)
    assert federation.ended(coordinator) == 0
    early.kill()
    final = versions(federation)[-1]
    held = federation.state("far") / "private" / f"{final}.safetensors"
    original = federation.state("coordinator") / "models" / f"{final}.safetensors"
    with link:
        behind = {**federation.broker, "port": link.port}
        agent = federation.agent("far", index=1, devices=2, broker=behind)
        federation.wait_for(held.exists, "the model")
        federation.wait_for(lambda: '"ready"' in _status(federation), "the device to be ready")
        assert held.read_bytes() == original.read_bytes()
        agent.kill()
        before = link.bytes_down
        federation.agent("far", index=1, devices=2, broker=behind)
        federation.wait_for(lambda: link.bytes_down > before, "the device to be back")
        federation.wait_for(lambda: '"ready"' in _status(federation), "the device to be ready")
        assert link.bytes_down - before < 0.1 * MODEL, "it holds the version"


def test_only_the_last_version_stays_at_the_broker(federation: Federation) -> None:
    coordinator = federation.coordinator(
        rounds={"count": 3, "min_devices": 1},
        transfer={"chunk_bytes": 65536, "encoding": "float32+zstd"},
    )
    federation.agent("box", devices=1)
    assert federation.ended(coordinator) == 0
    topics = {message.topic.split("/")[4] for message in Listener(federation).messages("model")}
    assert topics == {versions(federation)[-1]}


def _status(federation: Federation) -> str:
    """The retained status of the far device, as it stands now."""
    said = Listener(federation).messages("status")
    return next((m.payload.decode() for m in said if "/far/" in m.topic), "")
