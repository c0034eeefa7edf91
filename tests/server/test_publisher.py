"""When the coordinator trusts the broker to have its model still, and when it publishes it anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.transport.outbox import Outbox, Parcel
from fededge.transport.session import Delivered, Session
from fededge.wire.messages import State
from fededge.wire.signing import sign
from fededge.wire.topics import Topics
from fededge_server.publisher import Publisher
from fededge_server.store import Store
from tests.device_agent.machine.test_life import MODEL, STATE

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
def boards(tmp_path: Path) -> Iterator[Make]:
    """One after the other, as processes with the same folder: each with a connection of its own."""
    store = Store(tmp_path / "state")
    store.open()

    def make() -> Publisher:
        link = cast(Session, Link())
        topics, size = Topics(STATE.federation), STATE.manifest.chunk_bytes
        return Publisher(
            link, topics, store, lambda: STATE, lambda: MODEL, 2, size, None, lambda: 99.0
        )

    yield make
    store.close()


def connected(board: Publisher, found: bytes | None = None) -> int:
    """How many chunks it publishes after a connect at which the broker has this state."""
    link = cast(Link, board.session)
    before = len(link.topics)
    board.look()
    if found is not None:
        board.came(found, msgspec.json.decode(found, type=State), retained=True)
    board.looked()
    return sum("/model/" in topic for topic in link.topics[before:])


def arrive(board: Publisher) -> bytes:
    """All chunks reach the broker; the state that follows them."""
    link = cast(Link, board.session)
    while link.outbox.travelling:
        board.delivered(Delivered(next(iter(link.outbox.travelling))))
    return link.last


def test_a_broker_without_our_state_gets_the_model_and_then_the_state(boards: Make) -> None:
    board = boards()
    assert connected(board) == 3
    assert not board.announced
    assert msgspec.json.decode(arrive(board), type=State).version == STATE.version


def test_a_state_that_was_seen_there_says_that_the_model_is_there(boards: Make) -> None:
    board = boards()
    connected(board)
    state = arrive(board)
    board.came(state, msgspec.json.decode(state, type=State), retained=False)  # its echo
    assert connected(board, state) == 0
    assert connected(boards(), state) == 0, "nor does a new process publish it"


def test_a_state_that_never_came_back_may_have_reached_another_broker(boards: Make) -> None:
    """The client sends it again after a reconnect, to a broker that may have lost the chunks."""
    board = boards()
    connected(board)
    state = arrive(board)
    assert connected(board, state) == 3
    connected(board, state)
    assert not board.settled, "cut off again before the chunks had arrived"
    assert connected(boards(), state) == 3, "and killed meanwhile"


def test_a_version_stays_until_a_state_names_the_next_one(boards: Make) -> None:
    """A device that comes meanwhile finds the model that the state before it names."""
    board, old = boards(), "000000-ffffffffffffffff"
    link = cast(Link, board.session)
    board.outdate(old)
    connected(board)
    state = arrive(board)
    assert not any(old in topic for topic in link.topics)
    assert not board.settled
    board.came(state, msgspec.json.decode(state, type=State), retained=False)
    assert link.topics[-2:] == [board.topics.model(old, index) for index in (0, 1)]
    assert board.settled


def test_a_forged_state_of_a_million_chunks_costs_as_many_messages_as_our_model_has(
    boards: Make,
) -> None:
    board, foreign = boards(), "000007-ffffffffffffffff"
    link = cast(Link, board.session)
    manifest = msgspec.structs.replace(STATE.manifest, chunks=1_000_000)
    forged = msgspec.structs.replace(STATE, version=foreign, manifest=manifest)
    connected(board, msgspec.json.encode(forged))
    state = arrive(board)
    board.came(state, STATE, retained=False)
    assert sum(foreign in topic for topic in link.topics) == board.most_chunks
    board.came(msgspec.json.encode(forged), forged, retained=False)
    state = link.last
    board.came(state, STATE, retained=False)
    assert sum(foreign in topic for topic in link.topics) == board.most_chunks, "never again"


def test_a_state_of_somebody_else_is_replaced_at_the_next_tick_and_no_sooner(
    boards: Make,
) -> None:
    """Two coordinators would answer each other as fast as the broker can."""
    board = boards()
    link = cast(Link, board.session)
    connected(board)
    ours = arrive(board)
    board.came(ours, msgspec.json.decode(ours, type=State), retained=False)  # its echo
    before = len(link.topics)
    forged = msgspec.structs.replace(STATE, run="forged", issued=7)
    for _ in range(100):
        board.came(msgspec.json.encode(forged), forged, retained=False)
    assert len(link.topics) == before
    assert not board.settled, "it does not leave before its own is back"
    board.refresh()
    assert link.topics[before:] == [board.topics.state]
    assert msgspec.json.decode(link.last, type=State).run == STATE.run
    board.refresh()
    assert len(link.topics) == before + 1


def test_with_a_key_chunks_that_a_forged_state_names_are_not_its_business(boards: Make) -> None:
    """It would take a hundred thousand messages down that nobody has put up."""
    board = boards()
    board.key = Ed25519PrivateKey.generate()
    connected(board)
    arrive(board)
    huge = msgspec.structs.replace(STATE.manifest, chunks=1_000_000)
    forged = msgspec.structs.replace(STATE, version="000009-0123456789abcdef", manifest=huge)
    board.came(msgspec.json.encode(forged), forged, retained=False)
    assert board.outdated == set()
    signed = sign(forged, board.key)
    board.look()
    board.came(msgspec.json.encode(signed), signed, retained=True)
    assert [*board.outdated] == [forged.version], "a leftover of our own"
