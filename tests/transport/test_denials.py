"""A denial by the access list of a real Mosquitto is told in one sentence, not swallowed."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from fededge.config import BrokerConfig
from fededge.errors import TransportError
from fededge.service import presence
from fededge.service.presence import claim_name, new_claim
from fededge.transport.denials import Denials
from fededge.transport.events import Denied
from fededge.transport.session import Session
from fededge.wire.messages import Status
from fededge.wire.topics import Topics
from tests import mosquitto

TOPICS = Topics("gates")
PATIENCE = 20.0

CONF = """
listener {port} 127.0.0.1
allow_anonymous true
acl_file {folder}/acl
"""
ACL = f"""
pattern readwrite {TOPICS.device("%u", "claim")}
pattern readwrite {TOPICS.device("%u", "status")}
user mute
topic write {TOPICS.device("mute", "claim")}
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with mosquitto.enterable() as folder:
        number = mosquitto.free_port()
        (folder / "mosquitto.conf").write_text(CONF.format(port=number, folder=folder))
        (folder / "acl").write_text(ACL)
        (folder / "acl").chmod(0o644)
        with mosquitto.running(folder, number):
            yield number


def broker(port: int, user: str) -> BrokerConfig:
    return BrokerConfig(host="127.0.0.1", port=port, username=user, password="x", wait=5.0)


def claimed(port: int, user: str, device: str) -> None:
    base = TOPICS.device(device)
    claim_name(broker(port, user), base, new_claim(), "0a" * 16, f"device '{device}'", Status)


def test_a_user_name_that_is_not_the_devices_id_is_told(port: int) -> None:
    claimed(port, "box", "box")
    with pytest.raises(TransportError) as caught:
        claimed(port, "other", "box")
    said = str(caught.value)
    topic = TOPICS.device("box", "claim")
    assert said.startswith(
        f"the broker does not let user 'other' publish '{topic}' (Not authorized"
    )
    assert "the user name of a device must be its id" in said


def test_a_denied_message_is_told_and_an_allowed_one_is_not(port: int) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    session = Session(broker(port, "box"), "denied", inbox)
    session.start()
    try:
        session.publish(TOPICS.device("box", "status"), b"allowed")
        session.publish(TOPICS.device("box", "report"), b"denied")
        deadline = time.monotonic() + PATIENCE
        while not isinstance(event := inbox.get(timeout=deadline - time.monotonic()), Denied):
            pass
    finally:
        session.stop()
    assert (event.action, event.topic) == ("publish", TOPICS.device("box", "report"))
    assert not session._denials._topics, "nothing is remembered of what was answered"


def test_a_device_that_cannot_read_its_own_topics_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Mosquitto takes the subscription and delivers nothing: only the missing echo shows it."""
    monkeypatch.setattr(presence, "AWAIT_ANSWER", 0.1)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with caplog.at_level(logging.WARNING):
        assert presence._await_answer(inbox, new_claim(), lambda _: None, "mute") == ""
    assert "its access list does not let user 'mute' read its own topics" in caplog.text


def test_an_answer_that_comes_before_the_number_is_known_is_not_lost() -> None:
    told: list[Denied] = []
    denials = Denials(told.append)
    refused = ReasonCode(PacketTypes.PUBACK, "Not authorized")
    fine = ReasonCode(PacketTypes.SUBACK, "Granted QoS 1")
    no = ReasonCode(PacketTypes.SUBACK, "Not authorized")
    denials.published(1, refused)
    denials.sent(1, "a")
    denials.sent(2, "b", "c", "d")
    denials.subscribed(2, [fine, no, fine])
    denials.sent(None, "e")
    assert told == [
        Denied("publish", "a", "Not authorized"),
        Denied("subscribe to", "c", "Not authorized"),
    ]
