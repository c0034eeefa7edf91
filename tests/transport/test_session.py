"""A session outlives its connections: on a real Mosquitto that is stopped, killed and restarted."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fededge.broker.local import Broker
from fededge.config import BrokerConfig
from fededge.errors import RefusedError, TransportError
from fededge.service import presence
from fededge.service.presence import claim_name, new_claim
from fededge.transport import backpressure as backlog
from fededge.transport import paho_client
from fededge.transport.session import Connected, Failed, Incoming, Lost, Session, Will
from fededge.wire import chunks
from fededge.wire.messages import Claim, Presence, decode, encode

PATIENCE = 15.0
ME, OTHER = "5d" * 16, "0a" * 16


def said_by(instance: str, online: bool = True, answers: str = "") -> bytes:
    return encode(Presence(instance, online, "x", answers))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", kind="mosquitto", persistent=True) as running:
        yield running


@pytest.fixture
def opened() -> Iterator[list[Session]]:
    sessions: list[Session] = []
    yield sessions
    for session in sessions:
        session.stop()


def config(broker: Broker, **more: Any) -> BrokerConfig:
    return BrokerConfig(host=broker.host, port=broker.port, wait=2.0, keepalive=5, **more)


def started(
    opened: list[Session], broker: BrokerConfig, name: str, *topics: str, **options: Any
) -> Session:
    session = Session(broker, name, queue.SimpleQueue(), **options)
    for topic in topics:
        session.subscribe(topic)
    session.start()
    opened.append(session)
    return session


def next_event(session: Session, kind: type) -> Any:
    """The next event of this kind; messages on the way to it are acknowledged."""
    deadline = time.monotonic() + PATIENCE
    while (left := deadline - time.monotonic()) > 0:
        event = session.inbox.get(timeout=left)
        if isinstance(event, kind):
            return event
        if isinstance(event, Incoming):
            event.ack()
    pytest.fail(f"no {kind.__name__} within {PATIENCE:.0f} s")


def crash(session: Session) -> None:
    """End a session as kill -9 would: the socket closes without DISCONNECT."""
    client = session._client
    assert client is not None
    session._stopping = True
    sock = client.socket()
    assert isinstance(sock, socket.socket)
    sock.shutdown(socket.SHUT_RDWR)


def test_a_message_arrives(broker: Broker, opened: list[Session]) -> None:
    reader = started(opened, config(broker), "reader", "a/+")
    writer = started(opened, config(broker), "writer")
    writer.publish("a/b", b"hello")
    message = next_event(reader, Incoming)
    assert (message.topic, message.payload, message.retained) == ("a/b", b"hello", False)


def test_after_a_broker_restart_subscriptions_are_there_again(
    broker: Broker, opened: list[Session]
) -> None:
    reader = started(opened, config(broker), "reader", "a")
    writer = started(opened, config(broker), "writer")
    next_event(reader, Connected)
    broker.kill()
    next_event(reader, Lost)
    writer.publish("a", b"said while the broker was away", retain=True)
    broker.start()
    next_event(reader, Connected)
    assert next_event(reader, Incoming).payload == b"said while the broker was away"


def test_an_unhandled_message_comes_again_to_the_next_process(
    broker: Broker, opened: list[Session]
) -> None:
    """A message is acknowledged by its reader, not on arrival: a crash in between loses none."""
    reader = started(opened, config(broker), "reader", "a", keep_seconds=60)
    writer = started(opened, config(broker), "writer")
    writer.publish("a", b"one")
    writer.publish("a", b"two")
    next_event(reader, Incoming).ack()
    assert next_event(reader, Incoming).payload == b"two"
    reader.stop()
    again = started(opened, config(broker), "reader", "a", keep_seconds=60)
    message = next_event(again, Incoming)
    message.ack()
    assert message.payload == b"two"


def test_a_reader_that_handles_nothing_is_sent_a_bounded_number(
    broker: Broker, opened: list[Session]
) -> None:
    reader = started(opened, config(broker), "reader", "a")
    writer = started(opened, config(broker), "writer")
    for number in range(200):
        writer.publish("a", b"%d" % number)
    time.sleep(1.0)
    waiting = reader.inbox.qsize()
    assert waiting <= 65  # the limit, and the Connected event
    got = [int(next_event_acked(reader)) for _ in range(200)]
    assert got == list(range(200))


def test_a_reader_that_is_slow_is_sent_a_bounded_number_of_bytes(
    broker: Broker, opened: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mosquitto 2.0 keeps to the Receive Maximum only until the first acknowledgement."""
    monkeypatch.setattr(backlog, "MAX_BYTES", 500_000)
    monkeypatch.setattr(backlog, "MAX_PAUSE", 60.0)
    reader = started(opened, config(broker), "reader", "a")
    writer = started(opened, config(broker), "writer")
    for number in range(200):
        writer.publish("a", b"%d " % number + bytes(100_000))
    got = [int(next_event_acked(reader).split()[0]) for _ in range(60)]
    time.sleep(1.0)
    assert reader.inbox.qsize() <= 5, "what is beyond 500,000 bytes waits at the broker"
    got += [int(next_event_acked(reader).split()[0]) for _ in range(140)]
    assert got == list(range(200))


def test_a_reader_that_does_nothing_for_long_stays_connected(
    broker: Broker, opened: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the backlog is full only pings and a message now and then are read."""
    monkeypatch.setattr(backlog, "MAX_BYTES", 1)
    monkeypatch.setattr(backlog, "MAX_PAUSE", 0.1)
    reader = started(opened, config(broker), "reader", "a")
    writer = started(opened, config(broker), "writer")
    for _ in range(100):
        writer.publish("a", b"something")
    time.sleep(8.0)  # one and a half times the keepalive of five seconds is 7.5
    events = [reader.inbox.get() for _ in range(reader.inbox.qsize())]
    assert not [event for event in events if isinstance(event, Lost)]


def next_event_acked(session: Session) -> bytes:
    message = next_event(session, Incoming)
    message.ack()
    payload: bytes = message.payload
    return payload


def test_the_will_is_published_when_the_connection_breaks(
    broker: Broker, opened: list[Session]
) -> None:
    reader = started(opened, config(broker), "reader", "status")
    dying = started(opened, config(broker), "dying", will=Will("status", b"gone"))
    crash(dying)
    assert next_event(reader, Incoming).payload == b"gone"


def test_last_words_replace_the_will(broker: Broker, opened: list[Session]) -> None:
    reader = started(opened, config(broker), "reader", "status")
    leaving = started(opened, config(broker), "leaving", will=Will("status", b"gone"))
    leaving.stop(Will("status", b"goodbye"))
    assert next_event(reader, Incoming).payload == b"goodbye"
    time.sleep(0.5)
    assert reader.inbox.empty()


def test_a_password_that_became_wrong_ends_the_session(
    tmp_path: Path, opened: list[Session]
) -> None:
    """A network error is retried; refused credentials are not, an operator has to act."""
    with Broker(tmp_path / "b", kind="mosquitto", users={"box": "old"}) as broker:
        session = started(opened, config(broker, username="box", password="old"), "box")
        next_event(session, Connected)
        broker.stop()
        broker.users = {"box": "new"}
        broker.start()
        assert "refuses user 'box'" in next_event(session, Failed).reason


def test_something_that_is_no_broker_is_named() -> None:
    """A web server accepts the connection and waits for the end of a line."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        where = BrokerConfig(host="127.0.0.1", port=server.server_port, wait=0.0)
        session = Session(where, "lost", queue.SimpleQueue())
        with pytest.raises(
            TransportError, match=f"127.0.0.1:{server.server_port}.*or not an MQTT broker"
        ):
            session.start()
    finally:
        server.shutdown()
        server.server_close()


def answering(answer: bytes | None) -> socket.socket:
    """A server that sends `answer` after the first packet; None: it closes the connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        held = []
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.recv(4096)
            if answer is None:
                connection.close()
            else:
                held.append(connection)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return server


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "did not answer for 5 s: it is a busy broker"),
        (None, "hangs up at once; it does not speak MQTT 5"),
        # CONNACK of MQTT 3.1.1 with return code 1, unacceptable protocol version
        (b"\x20\x02\x00\x01", "refuses .*protocol version.*it does not speak MQTT 5"),
    ],
    ids=["slow", "hangs up", "older"],
)
def test_a_broker_that_is_slow_is_not_taken_for_one_of_another_protocol(
    answer: bytes | None, said: str
) -> None:
    with answering(answer) as server:
        port = server.getsockname()[1]
        where = BrokerConfig(host="127.0.0.1", port=port, wait=0.0)
        with pytest.raises(TransportError, match=f"127.0.0.1:{port}: .*{said}"):
            Session(where, "early", queue.SimpleQueue()).start()


@pytest.mark.timeout(60)
def test_a_free_name_is_claimed_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "AWAIT_ANSWER", 600.0)
    claim_name(config(broker), "x/coordinator", new_claim(), ME, "a coordinator", Presence)


def test_a_holder_that_answers_keeps_its_name(broker: Broker, opened: list[Session]) -> None:
    holder = started(opened, config(broker), "holder", "x/claim")

    def answer() -> None:
        claim = decode(next_event(holder, Incoming).payload, Claim)
        holder.publish("x/status", said_by(OTHER, answers=claim.nonce), retain=True)

    holder.publish("x/status", said_by(OTHER), retain=True)
    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(RefusedError, match=rf"the thing is already running .instance {OTHER}"):
        claim_name(config(broker), "x", new_claim(), ME, "the thing", Presence)
    thread.join()


def test_an_answer_that_is_not_believed_is_none(broker: Broker, opened: list[Session]) -> None:
    """A coordinator with a key asks for signed ones."""
    holder = started(opened, config(broker), "holder", "x/claim")

    def answer() -> None:
        claim = decode(next_event(holder, Incoming).payload, Claim)
        holder.publish("x/status", said_by(OTHER, answers=claim.nonce), retain=True)

    thread = threading.Thread(target=answer)
    thread.start()
    holder.publish("x/status", said_by(OTHER), retain=True)
    claim_name(config(broker), "x", new_claim(), ME, "the thing", Presence, lambda _: False)
    thread.join()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"instance":"","online":true,"federation":"f"}'])
def test_garbage_holds_no_name(
    broker: Broker, opened: list[Session], monkeypatch: pytest.MonkeyPatch, garbage: bytes
) -> None:
    monkeypatch.setattr(presence, "AWAIT_ANSWER", 600.0)
    writer = started(opened, config(broker), "writer")
    writer.publish("x/status", garbage, retain=True)
    claim_name(config(broker), "x", new_claim(), ME, "the thing", Presence)


def test_every_claim_is_another_one() -> None:
    """An old answer cannot be replayed."""
    assert new_claim() != new_claim()


def test_a_presence_that_does_not_answer_is_a_leftover(
    broker: Broker, opened: list[Session]
) -> None:
    writer = started(opened, config(broker), "writer")
    writer.publish("x/status", said_by(OTHER), retain=True)
    claim_name(config(broker), "x", new_claim(), ME, "the thing", Presence)


@pytest.mark.timeout(60)
def test_a_process_finds_its_own_presence_harmless(
    broker: Broker, opened: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kill -9 the retained presence may still say that we are online."""
    monkeypatch.setattr(presence, "AWAIT_ANSWER", 600.0)
    writer = started(opened, config(broker), "writer")
    writer.publish("x/status", said_by(ME), retain=True)
    claim_name(config(broker), "x", new_claim(), ME, "the thing", Presence)


def test_the_largest_chunk_passes(broker: Broker, opened: list[Session]) -> None:
    reader = started(opened, config(broker), "reader", "t")
    writer = started(opened, config(broker), "writer")
    writer.publish("t", bytes(chunks.HEADER.size + 16 * 1024 * 1024))
    assert len(next_event(reader, Incoming).payload) == chunks.HEADER.size + 16 * 1024 * 1024


def test_a_packet_larger_than_any_message_is_not_delivered(
    broker: Broker, opened: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may have any limit: the reader has announced its own."""
    monkeypatch.setattr(paho_client, "MAX_PACKET", 100_000)
    reader = started(opened, config(broker), "reader", "t")
    writer = started(opened, config(broker), "writer")
    writer.publish("t", bytes(100_000))
    writer.publish("t", b"next")
    assert next_event(reader, Incoming).payload == b"next"


@pytest.mark.parametrize(("protocol", "marked"), [("5", True), ("3.1.1", False)])
def test_a_message_to_be_retained_is_marked_so_where_that_is_asked_for(
    broker: Broker, opened: list[Session], protocol: str, marked: bool
) -> None:
    """Also when it is new and after a reconnect; our own messages do not come back (MQTT 5)."""
    sender = started(opened, config(broker), "sender")
    reader = Session(config(broker, protocol=protocol), "reader", queue.SimpleQueue())
    reader.subscribe("a/+", as_published=True)
    reader.subscribe("b")
    reader.start()
    opened.append(reader)
    next_event(reader, Connected)
    time.sleep(0.2)
    reader.publish("a/own", b"")
    for topic in ("a/1", "b"):
        sender.publish(topic, b"x", retain=True)
    came = [next_event(reader, Incoming) for _ in range(2 if marked else 3)]
    assert [(m.topic, m.retained) for m in came if m.payload] == [("a/1", marked), ("b", False)]
