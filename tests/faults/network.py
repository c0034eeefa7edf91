"""An MQTT broker in memory, and sessions on it that go away and come back.

As with a real broker the messages of one topic keep their order, what is retained outlives its
sender, and a session's messages wait for it. Unlike one, it may also be told to lose a message.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fededge.transport.outbox import Outbox, Parcel
from fededge.transport.session import Connected, Delivered, Will

__all__ = ["Broker", "Link", "Packet"]


@dataclass(frozen=True)
class Packet:
    """A message; `number` is set for a chunk whose delivery the sender awaits."""

    topic: str
    payload: bytes
    retained: bool = False
    number: int = 0


@dataclass
class Broker:
    """Topics with retained messages, and a queue for each client that outlives its connection.

    A client's `filters` say whether its messages are marked as retained if they were published so;
    those that are do not come to the client that published them.
    """

    heard: Callable[[str, Packet], None]
    retained: dict[str, Packet] = field(default_factory=dict)
    filters: dict[str, dict[str, bool]] = field(default_factory=dict)
    queues: dict[str, list[Packet]] = field(default_factory=dict)

    def publish(self, sender: str, packet: Packet) -> None:
        self.heard(sender, packet)
        if packet.retained and packet.payload:
            self.retained[packet.topic] = packet
        elif packet.retained:
            self.retained.pop(packet.topic, None)
        for client, filters in self.filters.items():
            marks = [mark for pattern, mark in filters.items() if matches(pattern, packet.topic)]
            if marks and not (marks[0] and client == sender):
                retained = packet.retained and marks[0]
                self.queues[client].append(Packet(packet.topic, packet.payload, retained))

    def subscribe(self, client: str, pattern: str, as_published: bool = False) -> None:
        self.filters.setdefault(client, {})[pattern] = as_published
        queue = self.queues.setdefault(client, [])
        queue += [p for topic, p in self.retained.items() if matches(pattern, topic)]

    def unsubscribe(self, client: str, pattern: str) -> None:
        self.filters.setdefault(client, {}).pop(pattern, None)

    def restart(self, forgets: bool) -> None:
        """With persistence nothing is lost; without, everything."""
        if forgets:
            self.retained.clear()
            self.filters.clear()
            for queue in self.queues.values():
                queue.clear()


@functools.lru_cache(maxsize=1 << 14)
def matches(pattern: str, topic: str) -> bool:
    ours, theirs = pattern.split("/"), topic.split("/")
    return len(ours) == len(theirs) and all(
        a in ("+", b) for a, b in zip(ours, theirs, strict=True)
    )


class Link:
    """A process's session: what `fededge.transport.session.Session` is to the real shells.

    What is published waits in `outgoing` until the network takes it; a killed process loses it.
    """

    address = "mqtt://simulated"

    def __init__(self, broker: Broker, name: str, will: Will) -> None:
        self.broker = broker
        self.name = name
        self.will = will
        self.connected = False
        self.outgoing: list[Packet] = []
        self.subscriptions: dict[str, bool] = {}
        self.outbox = Outbox(self._hand)
        self.numbers = itertools.count(1)

    def start(self) -> None:
        """Do nothing: the network decides when the connection is made."""

    def stop(self, last_words: Will | None = None) -> None:
        self.connected = False

    def connect(self) -> Connected:
        """All subscriptions again, as the real session does."""
        self.connected = True
        resumed = self.name in self.broker.filters
        for pattern, as_published in self.subscriptions.items():
            self.broker.subscribe(self.name, pattern, as_published)
        return Connected(resumed)

    def lose(self, noticed: bool) -> None:
        """Lose the connection; if the broker notices, it publishes the last will."""
        self.connected = False
        if noticed:
            self.broker.publish(self.name, Packet(self.will.topic, self.will.payload, True))

    def subscribe(self, *topics: str, lasting: bool = True, as_published: bool = False) -> None:
        if lasting:
            self.subscriptions.update(dict.fromkeys(topics, as_published))
        for topic in topics if self.connected else ():
            self.broker.subscribe(self.name, topic, as_published)

    def unsubscribe(self, *topics: str) -> None:
        for topic in topics:
            self.subscriptions.pop(topic, None)
            if self.connected:
                self.broker.unsubscribe(self.name, topic)

    def send(self, parcel: Parcel) -> None:
        self.outbox.put(parcel)

    def sending(self, topic: str) -> bool:
        return topic in self.outbox

    def drop(self, prefix: str) -> None:
        self.outbox.drop(prefix)

    def delivered(self, event: Delivered) -> None:
        self.outbox.arrived(event.number)

    @property
    def idle(self) -> bool:
        return self.outbox.empty

    def _hand(self, parcel: Parcel, payload: bytes) -> int:
        number = next(self.numbers)
        self.outgoing.append(Packet(parcel.topic, payload, parcel.retain, number))
        return number

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expiry: int | None = None
    ) -> None:
        self.outgoing.append(Packet(topic, payload, retain))

    def flush_one(self, rng: random.Random, reorder: float, lose: bool, twice: bool) -> int:
        """One message reaches the broker: perhaps before its turn, twice, or never. Its number."""
        index = rng.randrange(len(self.outgoing)) if rng.random() < reorder else 0
        packet = first_of_topic(self.outgoing, self.outgoing[index].topic)
        self.outgoing.remove(packet)
        for _ in range(0 if lose and not packet.retained else 2 if twice else 1):
            self.broker.publish(self.name, packet)
        return packet.number


def first_of_topic(queue: list[Packet], topic: str) -> Packet:
    return next(packet for packet in queue if packet.topic == topic)
