"""Retained messages where nothing may be retained: cleared once, and looked for again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fededge.errors import WireError
from fededge.transport.session import Incoming, Session
from fededge.wire.topics import Topics
from fededge_server.sweeper import AGAIN, Sweeper

TOPICS = Topics("gates")
VERSION = "000000-0123456789abcdef"
FLEETING = [
    TOPICS.device("a", "report"),
    TOPICS.update("a", VERSION, 3),
    f"{TOPICS.coordinator}/claim",
]
LASTING = [TOPICS.state, TOPICS.device("a", "status"), f"{TOPICS.coordinator}/status"]


class Recorder:
    """The part of a session that a sweeper uses."""

    def __init__(self) -> None:
        self.said: list[tuple[str, bytes, bool]] = []
        self.subscribed = 0

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        self.said.append((topic, payload, retain))

    def subscribe(self, *topics: str, as_published: bool = False) -> None:
        assert as_published
        self.subscribed += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def sweeper(recorder: Recorder) -> Sweeper:
    return Sweeper(cast(Session, recorder), TOPICS)


def message(topic: str, retained: bool, payload: bytes = b"x") -> tuple[Any, Incoming]:
    return TOPICS.parse(topic), Incoming(topic, payload, retained, lambda: None)


@pytest.mark.parametrize("topic", FLEETING)
def test_a_retained_message_is_cleared_and_refused(
    sweeper: Sweeper, recorder: Recorder, topic: str
) -> None:
    with pytest.raises(WireError, match="it was retained, where nothing may be"):
        sweeper.check(*message(topic, retained=True), 0.0)
    assert recorder.said == [(topic, b"", True)]
    assert sweeper.cleared(*message(topic, retained=False, payload=b""))


@pytest.mark.parametrize("topic", [*FLEETING, *LASTING])
def test_everything_else_passes(sweeper: Sweeper, recorder: Recorder, topic: str) -> None:
    passes = message(topic, retained=topic in LASTING)
    sweeper.check(*passes, 0.0)
    assert not sweeper.cleared(*passes)
    sweeper.tick(AGAIN)
    assert recorder.said == []
    assert recorder.subscribed == 0


def test_the_broker_is_asked_once_more_until_nothing_is_left(
    sweeper: Sweeper, recorder: Recorder
) -> None:
    for now in (5.0, 6.0, 7.0):
        with pytest.raises(WireError):
            sweeper.check(*message(FLEETING[0], retained=True), now)
    sweeper.tick(5.0 + AGAIN - 1)
    assert recorder.subscribed == 0
    for now in (5.0 + AGAIN, 5.0 + 2 * AGAIN):
        sweeper.tick(now)
    assert recorder.subscribed == 1
