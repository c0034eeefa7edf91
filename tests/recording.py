"""A TCP proxy that keeps every byte a client sends to its broker, and reads it as MQTT 5."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import Self

__all__ = ["Packet", "Recorder", "packets"]

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT = 1, 3, 4, 8, 10, 12, 14
SIZES = {0x02: 4, 0x11: 4, 0x21: 2, 0x27: 4}
"""Bytes of the MQTT properties that a client of ours uses: expiry of a message, expiry of the
session, how many messages may be on the way to it, and how large one may be.
"""


class Recorder:
    """Listens on a port of its own and passes all on; `streams` is what each client said."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.streams: list[bytearray] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._server, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection(self.target)
                self._open += [client, broker]
                stream = bytearray()
                self.streams.append(stream)
                for ends in ((client, broker, stream), (broker, client, None)):
                    threading.Thread(target=_pass, args=ends, daemon=True).start()

    @property
    def everything(self) -> bytes:
        return b"".join(bytes(stream) for stream in self.streams)


def _pass(source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if record is not None:
                record += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class Packet:
    """An MQTT packet of a client, completely parsed: kind, topics, and the payload if any."""

    kind: int
    topics: tuple[str, ...] = ()
    payload: bytes = b""


class _Reader:
    """Takes fields off bytes; what is not there is an error."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.place : self.place + size]
        assert len(piece) == size, "a packet is cut short"
        self.place += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def length(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value

    def text(self) -> str:
        return self.take(self.number(2)).decode()

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.place)

    @property
    def empty(self) -> bool:
        return self.place == len(self.data)


def packets(stream: bytes) -> Iterator[Packet]:
    """Every packet of a stream; a byte that has no place in the grammar is an AssertionError."""
    reader = _Reader(stream)
    while not reader.empty:
        head = reader.number(1)
        body = _Reader(reader.take(reader.length()))
        yield _packet(head >> 4, head & 15, body)
        assert body.empty, "a packet has bytes that mean nothing"


def _packet(kind: int, flags: int, body: _Reader) -> Packet:
    if kind == CONNECT:
        return _connect(body)
    if kind == PUBLISH:
        topic = body.text()
        if flags & 6:  # QoS 1 or 2
            body.number(2)
        _only(body, {0x02})
        return Packet(kind, (topic,), body.rest())
    if kind in (SUBSCRIBE, UNSUBSCRIBE):
        return _filters(kind, body)
    most = {PUBACK: 4, PINGREQ: 0, DISCONNECT: 2}
    assert kind in most, f"a client does not send packets of type {kind}"
    assert len(body.rest()) <= most[kind]
    return Packet(kind)


def _connect(body: _Reader) -> Packet:
    assert body.text() == "MQTT"
    assert body.number(1) == 5
    flags = body.number(1)
    body.number(2)  # keep-alive
    _only(body, {0x11, 0x21, 0x27})
    body.text()  # client id
    if not flags & 4:
        return Packet(CONNECT)
    _only(body, set())
    topic = body.text()
    return Packet(CONNECT, (topic,), body.take(body.number(2)))


def _filters(kind: int, body: _Reader) -> Packet:
    body.number(2)
    _only(body, set())
    filters = []
    while not body.empty:
        filters.append(body.text())
        if kind == SUBSCRIBE:
            body.number(1)
    return Packet(kind, tuple(filters))


def _only(body: _Reader, allowed: set[int]) -> None:
    """Read properties; others than these, which could carry anything, are not there."""
    properties = _Reader(body.take(body.length()))
    while not properties.empty:
        name = properties.number(1)
        assert name in allowed, f"MQTT property {name} left the device"
        properties.number(SIZES[name])
