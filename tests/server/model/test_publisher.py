"""The coordinator publishes its model anew unless it can trust the broker to have it still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.errors import WireError
from fededge.transport.outbox import Outbox, Parcel
from fededge.transport.session import Delivered, Session
from fededge.wire.chunks import Payload
from fededge.wire.messages import State
from fededge.wire.signing import sign
from fededge.wire.topics import Topics
from fededge_server.model.publisher import Publisher
from fededge_server.store import Store
from tests.device_agent.machine.test_agent import MODEL, STATE

Make = Callable[[], Publisher]


class Link:
    """A connection whose messages the test carries to the broker, or not."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.last = b""
        self.outbox = Outbox(lambda parcel, payload: self.publish(parcel.topic, payload))

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> int:
        self.topics.append(topic)
        self.last = payload
        return len(self.topics)

    @property
    def idle(self) -> bool:
        return self.outbox.empty

    def send(self, parcel: Parcel) -> None:
        self.outbox.put(parcel)

    def drop(self, prefix: str) -> None:
        self.outbox.drop(prefix)

    def delivered(self, event: Delivered) -> None:
        self.outbox.arrived(event.number)


@pytest.fixture
def publishers(tmp_path: Path) -> Iterator[Make]:
    """One after the other, as processes with the same folder: each with a connection of its own."""
    store = Store(tmp_path / "state")
    store.open()

    def make() -> Publisher:
        link = cast(Session, Link())
        topics, size = Topics(STATE.federation), STATE.manifest.chunk_bytes
        return Publisher(
            link,
            topics,
            store,
            lambda manifest: STATE,
            lambda: Payload.of(MODEL, size),
            most_chunks=2,
            manifest=STATE.manifest,
            key=None,
            wall=lambda: 99.0,
        )

    yield make
    store.close()


def connected(publisher: Publisher, found: bytes | None = None) -> int:
    """The number of chunks that it publishes after a connect at which the broker has this state."""
    link = cast(Link, publisher.session)
    before = len(link.topics)
    publisher.look()
    if found is not None:
        publisher.came(found, retained=True)
    publisher.begin()
    return sum("/model/" in topic for topic in link.topics[before:])


def arrive(publisher: Publisher) -> bytes:
    """All chunks reach the broker; the state that follows them."""
    link = cast(Link, publisher.session)
    while link.outbox.in_flight:
        publisher.delivered(Delivered(next(iter(link.outbox.in_flight))))
    return link.last


def test_a_broker_without_our_state_gets_the_model_and_then_the_state(publishers: Make) -> None:
    publisher = publishers()
    assert connected(publisher) == 3
    assert not publisher.announced
    assert msgspec.json.decode(arrive(publisher), type=State).version == STATE.version


def test_a_state_that_was_seen_there_says_that_the_model_is_there(publishers: Make) -> None:
    publisher = publishers()
    connected(publisher)
    state = arrive(publisher)
    publisher.came(state, retained=False)  # its echo
    assert connected(publisher, state) == 0
    assert connected(publishers(), state) == 0, "nor does a new process publish it"


def test_a_state_that_never_came_back_may_have_reached_another_broker(publishers: Make) -> None:
    """The client sends it again after a reconnect, to a broker that may have lost the chunks."""
    publisher = publishers()
    connected(publisher)
    state = arrive(publisher)
    assert connected(publisher, state) == 3
    connected(publisher, state)
    assert not publisher.idle, "cut off again before the chunks had arrived"
    assert connected(publishers(), state) == 3, "and killed meanwhile"


def test_a_version_stays_until_a_state_names_the_next_one(publishers: Make) -> None:
    """A device that comes meanwhile finds the model that the state before it names."""
    publisher, old = publishers(), "000000-ffffffffffffffff"
    link = cast(Link, publisher.session)
    publisher.outdate(old)
    connected(publisher)
    state = arrive(publisher)
    assert not any(old in topic for topic in link.topics)
    assert not publisher.idle
    publisher.came(state, retained=False)
    assert link.topics[-2:] == [publisher.topics.model(old, index) for index in (0, 1)]
    assert publisher.idle


def test_a_forged_state_of_a_million_chunks_costs_as_many_messages_as_our_model_has(
    publishers: Make,
) -> None:
    publisher, foreign = publishers(), "000007-ffffffffffffffff"
    link = cast(Link, publisher.session)
    manifest = msgspec.structs.replace(STATE.manifest, chunks=1_000_000)
    forged = msgspec.structs.replace(STATE, version=foreign, manifest=manifest)
    connected(publisher, msgspec.json.encode(forged))
    state = arrive(publisher)
    publisher.came(state, retained=False)
    assert sum(foreign in topic for topic in link.topics) == publisher.most_chunks
    publisher.came(msgspec.json.encode(forged), retained=False)
    publisher.refresh()
    publisher.came(link.last, retained=False)
    assert sum(foreign in topic for topic in link.topics) == publisher.most_chunks, "never again"


def test_a_state_of_somebody_else_is_replaced_at_the_next_tick_and_no_sooner(
    publishers: Make,
) -> None:
    """Two coordinators would answer each other as fast as the broker can."""
    publisher = publishers()
    link = cast(Link, publisher.session)
    connected(publisher)
    ours = arrive(publisher)
    publisher.came(ours, retained=False)  # its echo
    before = len(link.topics)
    forged = msgspec.structs.replace(STATE, run="forged", issued=7)
    for _ in range(100):
        publisher.came(msgspec.json.encode(forged), retained=False)
    assert len(link.topics) == before
    assert not publisher.idle, "it does not leave before its own is back"
    publisher.refresh()
    assert link.topics[before:] == [publisher.topics.state]
    assert msgspec.json.decode(link.last, type=State).run == STATE.run
    publisher.refresh()
    assert len(link.topics) == before + 1


def test_with_a_key_chunks_that_a_forged_state_names_are_not_its_business(publishers: Make) -> None:
    """It would take a hundred thousand messages down that nobody has put up."""
    publisher = publishers()
    publisher.key = Ed25519PrivateKey.generate()
    connected(publisher)
    arrive(publisher)
    huge = msgspec.structs.replace(STATE.manifest, chunks=1_000_000)
    forged = msgspec.structs.replace(STATE, version="000009-0123456789abcdef", manifest=huge)
    publisher.came(msgspec.json.encode(forged), retained=False)
    assert publisher.outdated == set()
    signed = sign(forged, publisher.key)
    publisher.look()
    publisher.came(msgspec.json.encode(signed), retained=True)
    assert [*publisher.outdated] == [forged.version], "a leftover of our own"


@pytest.mark.parametrize("word", [b"", b"garbage"])
def test_garbage_in_place_of_its_state_is_replaced(publishers: Make, word: bytes) -> None:
    publisher = publishers()
    connected(publisher)
    arrive(publisher)
    with pytest.raises(WireError, match="not a State"):
        publisher.came(word, retained=False)
    publisher.refresh()
    link = cast(Link, publisher.session)
    assert msgspec.json.decode(link.last, type=State).version == STATE.version
