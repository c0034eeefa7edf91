"""Light agents: a fleet of devices on one selector, without threads, disks or training.

Each has its own MQTT connection (3.1.1, the least that a broker speaks), last will and retained
status. It follows the protocol of a real agent: statuses as it goes, the model's chunks when it is
asked, a report, the chunks that the coordinator asks for. Its update is the model that it received,
so the messages of the model's chunks are those of the update.
"""

from __future__ import annotations

import enum
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from fededge import methods
from fededge.wire.messages import Reply, Report, State, Status, TaskMessage, decode, encode
from fededge.wire.topics import Topics

__all__ = ["EXAMPLES", "LightFleet"]

INSTANCE = "1197" * 8
EXAMPLES = 100
CONNECTING = 50
"""Connections that may be in the making at once: a broker's backlog is short."""

KEEPALIVE = 600
AT_ONCE = 1 << 18

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, UNSUBSCRIBE = 1, 2, 3, 4, 8, 10
Activity = Literal["starting", "ready", "fetching", "training"]


class Link(enum.Enum):
    """The state of an agent's connection."""

    CLOSED = "closed"
    CONNECTING = "connecting"
    OPEN = "open"


@lru_cache(maxsize=8)
def state_of(payload: bytes) -> State:
    """Every agent gets the same bytes: one of them reads them."""
    return decode(payload, State)


def packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    size, length = len(body), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([kind << 4 | flags]) + bytes([*length, size]) + body


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def split(buffer: bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Take the whole packets out of a buffer: kind, flags and body."""
    while len(buffer) >= 2:
        size = shift = 0
        at = 1
        while at < len(buffer):
            size |= (buffer[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if not buffer[at - 1] & 128:
                break
        else:
            return
        if len(buffer) < at + size:
            return
        kind, body = buffer[0], bytes(buffer[at : at + size])
        del buffer[: at + size]
        yield kind >> 4, kind & 15, body


class LightAgent:
    """One device. The constructor only stores; `open` connects."""

    def __init__(self, device: str, topics: Topics) -> None:
        self.device = device
        self.topics = topics
        self.link = Link.CLOSED
        self.socket = socket.socket()
        self.inward, self.outward = bytearray(), bytearray()
        self.packet_id = 0
        self.state: State | None = None
        self.task: str = ""
        self.chunks: dict[int, bytes] = {}

    def open(self, address: tuple[str, int]) -> None:
        self.socket.setblocking(False)
        self.socket.connect_ex(address)
        self.link = Link.CONNECTING
        will = encode(Status(INSTANCE, online=False, device=self.device))
        flags = 0b00101110  # a clean session; the will is retained, with QoS 1
        head = text("MQTT") + bytes([4, flags]) + struct.pack(">H", KEEPALIVE)
        told = text(self.topics.device(self.device, "status")) + struct.pack(">H", len(will)) + will
        self.outward += packet(CONNECT, head + text(f"light-{self.device}") + told)

    # Bytes

    def read(self) -> None:
        while data := self._receive():
            self.inward += data
        for kind, flags, body in split(self.inward):
            self._take(kind, flags, body)

    def _receive(self) -> bytes:
        try:
            data = self.socket.recv(AT_ONCE)
        except BlockingIOError:
            return b""
        if not data:
            raise SystemExit(f"{self.device}: the broker closed the connection, see its log")
        return data

    def write(self) -> bool:
        """Send what waits; True if some of it is left."""
        try:
            while self.outward:
                del self.outward[: self.socket.send(memoryview(self.outward)[:AT_ONCE].tobytes())]
        except BlockingIOError:
            return True
        return False

    def _take(self, kind: int, flags: int, body: bytes) -> None:
        if kind == CONNACK:
            if body[1]:
                raise SystemExit(f"{self.device}: the broker refuses the connection ({body[1]})")
            self.link = Link.OPEN
            self._say("starting")
            kinds = ("task", "reply")
            self._subscribe(*(self.topics.device(self.device, k) for k in kinds), self.topics.state)
        elif kind == PUBLISH:
            (length,) = struct.unpack_from(">H", body)
            start = 2 + length
            if flags & 0b0110:
                self.outward += packet(PUBACK, body[start : start + 2])
                start += 2
            self._message(body[2 : 2 + length].decode(), body[start:])

    # The protocol

    def _message(self, topic: str, payload: bytes) -> None:
        address = self.topics.parse(topic)
        match address.kind:
            case "state" if payload:
                first, self.state = self.state is None, state_of(payload)
                if first:
                    self._say("ready")
            case "task":
                self._begin(decode(payload, TaskMessage).version)
            case "model" if payload and address.version == self.task:
                self._keep(address.chunk, payload)
            case "reply":
                self._answer(decode(payload, Reply))

    def _begin(self, version: str) -> None:
        if self.task == version:
            self._report_again()
            return
        self.task, self.chunks = version, {}
        self._say("fetching")
        self._subscribe(self.topics.model(version))

    def _report_again(self) -> None:
        """Asked for the same once more: the report was lost, or the chunks are on their way."""
        if self.state is not None and len(self.chunks) == self.state.manifest.chunks:
            self._report(self.state)

    def _keep(self, index: int, payload: bytes) -> None:
        assert self.state is not None
        self.chunks[index] = payload
        if len(self.chunks) < self.state.manifest.chunks:
            return
        self._send(UNSUBSCRIBE, text(self.topics.model(self.task)), flags=2)
        self._say("training")
        self._report(self.state)

    def _report(self, state: State) -> None:
        report = Report(
            device=self.device,
            run=state.run,
            version=self.task,
            layout=state.layout,
            manifest=state.manifest,
            scalars=scalars_of(state.method) | {"examples": float(EXAMPLES)},
        )
        self._publish(self.topics.device(self.device, "report"), encode(report))

    def _answer(self, reply: Reply) -> None:
        if reply.version != self.task:
            return
        if reply.kind == "resend":
            for index in reply.chunks:
                topic = self.topics.update(self.device, self.task, index)
                self._publish(topic, self.chunks[index])
        else:
            self.task, self.chunks = "", {}
            self._say("ready")

    def _say(self, activity: Activity) -> None:
        layout = "" if self.state is None else self.state.layout
        status = Status(INSTANCE, True, "", self.device, activity, layout, EXAMPLES)
        self._publish(self.topics.device(self.device, "status"), encode(status), retain=True)

    def repeat(self) -> None:
        """Give a sign of life."""
        self._say("training" if self.task else "ready")

    # Packets

    def _publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        self._send(PUBLISH, payload, text(topic), flags=0b0010 | retain)

    def _subscribe(self, *filters: str) -> None:
        self._send(SUBSCRIBE, b"".join(text(name) + b"\x01" for name in filters), flags=2)

    def _send(self, kind: int, body: bytes, head: bytes = b"", flags: int = 0) -> None:
        self.packet_id = self.packet_id % 65535 + 1
        self.outward += packet(kind, head + struct.pack(">H", self.packet_id) + body, flags)


@lru_cache(maxsize=1)
def scalars_of(method: str) -> dict[str, float]:
    return dict.fromkeys(methods.method(method).scalars, 1.0)


class LightFleet:
    """Many light agents on one selector."""

    def __init__(self, federation: str, names: Sequence[str], address: tuple[str, int]) -> None:
        topics = Topics(federation)
        self.address = address
        self.waiting = deque(LightAgent(name, topics) for name in names)
        self.connecting: set[LightAgent] = set()
        self.agents: list[LightAgent] = []
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve the agents until the process is terminated."""
        alive = time.monotonic()
        while True:
            self._connect()
            for key, _ in self.selector.select(1.0):
                self._serve(key.data)
            lease = self.agents[0].state.lease if self.agents and self.agents[0].state else 0.0
            if lease and time.monotonic() - alive > lease / 3:
                alive = time.monotonic()
                for agent in self.agents:
                    agent.repeat()
                    self._flush(agent)

    def _connect(self) -> None:
        while self.waiting and len(self.connecting) < CONNECTING:
            agent = self.waiting.popleft()
            agent.open(self.address)
            self.connecting.add(agent)
            self.selector.register(agent.socket, selectors.EVENT_WRITE, agent)

    def _serve(self, agent: LightAgent) -> None:
        was = agent.link
        agent.read()
        if was is Link.CONNECTING and agent.link is Link.OPEN:
            self.connecting.discard(agent)
            self.agents.append(agent)
        self._flush(agent)

    def _flush(self, agent: LightAgent) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if agent.write() else 0)
        if self.selector.get_key(agent.socket).events != events:
            self.selector.modify(agent.socket, events, agent)
