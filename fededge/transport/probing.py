"""One short connection to the broker that reports what the broker says, for `fededge doctor`.

It has a client id of its own, so that it does not take over the session of a running service. The
caller's thread does all the work: there is no network thread, and no reconnect.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt

from fededge.config import BrokerConfig
from fededge.errors import TransportError
from fededge.transport import paho_client

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GRANTED", "Heard", "Probing", "Welcome"]

GRANTED = 0x80
"""Reason codes below this one are a success."""

STEP = 0.05


@dataclass(frozen=True)
class Welcome:
    """The broker's answer to CONNECT: reason code, its name, and the limits that it announces."""

    code: int
    reason: str
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Heard:
    """A message that arrived."""

    topic: str
    payload: bytes
    retained: bool


LIMITS = ("MaximumPacketSize", "RetainAvailable", "WildcardSubscriptionAvailable", "MaximumQoS")
"""Properties of CONNACK that matter to a federation; a broker omits those without a limit."""

CALLBACKS = ("on_connect", "on_disconnect", "on_message", "on_subscribe", "on_publish")
"""Attributes of paho's client; our methods have the same names with an underscore."""


class Probing:
    """A connection for the length of a `with` block. The constructor only stores."""

    def __init__(self, broker: BrokerConfig, seconds: float, will_topic: str = "") -> None:
        """`will_topic`: a last will that is never published; brokers check its ACL at CONNECT."""
        self.broker = broker
        self.seconds = seconds
        self.will_topic = will_topic
        self.welcome: Welcome | None = None
        self.heard: list[Heard] = []
        self.lost = ""
        self._codes: dict[int, list[int]] = {}
        self._client: mqtt.Client | None = None

    def __enter__(self) -> Self:
        """Connect; OSError if the server cannot be reached, `welcome` is None if it is silent."""
        for password in self.broker.passwords:
            self._connect(password)
            if self.welcome is None or self.welcome.accepted:
                break
        return self

    def _connect(self, password: str) -> None:
        self.welcome, self.lost = None, ""
        client_id = f"doctor-{uuid.uuid4().hex[:12]}"
        client = paho_client.make_client(self.broker, client_id, None, 0)
        client.connect_timeout = self.seconds
        for name in CALLBACKS:
            setattr(client, name, getattr(self, f"_{name}"))
        if self.will_topic:
            client.will_set(self.will_topic, b"", qos=0, retain=False)
        if self.broker.username:
            client.username_pw_set(self.broker.username, password)
        self._client = client
        paho_client.connect(client, self.broker, 0)
        self._wait(lambda: self.welcome is not None)

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.disconnect()  # the broker forgets the will
            self._client.loop(STEP)
            self._client = None

    @property
    def connected(self) -> bool:
        return self.welcome is not None and self.welcome.accepted and not self.lost

    def subscribe(self, topics: Iterable[str]) -> dict[str, int]:
        """Subscribe to topics one by one; return the broker's reason codes, -1 for no answer."""
        client, codes = self._live, {}
        for topic in topics:
            _, number = client.subscribe(
                paho_client.subscription_filters(self.broker, {topic: False})
            )
            codes[topic] = self._code(number)
        return codes

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> int:
        """Publish with QoS 1; return the broker's reason code, -1 for no answer."""
        return self._code(
            paho_client.publish(self._live, self.broker, topic, payload, retain, None)
        )

    def listen(self, quiet: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Receive until `enough`, until `quiet` seconds without a message, or the limit."""
        end, count, last = time.monotonic() + self.seconds, len(self.heard), time.monotonic()
        while not self.lost and not enough() and time.monotonic() < end:
            self._live.loop(STEP)
            if len(self.heard) != count:
                count, last = len(self.heard), time.monotonic()
            elif time.monotonic() - last > quiet:
                break

    @property
    def _live(self) -> mqtt.Client:
        if self._client is None:
            raise TransportError("the connection to the broker is closed")
        return self._client

    def _code(self, number: int | None) -> int:
        self._wait(lambda: number in self._codes)
        return max(self._codes.get(number or 0, [-1]))

    def _wait(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + self.seconds
        while not done() and not self.lost and time.monotonic() < end:
            self._live.loop(STEP)

    def _on_connect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: Any, properties: Any
    ) -> None:
        limits = {name: getattr(properties, name, None) for name in LIMITS}
        known = {name: int(value) for name, value in limits.items() if value is not None}
        self.welcome = Welcome(code.value, str(code), known)

    def _on_disconnect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: Any, properties: Any
    ) -> None:
        self.lost = str(code)

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self.heard.append(Heard(message.topic, bytes(message.payload), message.retain))
        if message.qos:
            client.ack(message.mid, message.qos)

    def _on_subscribe(
        self, client: mqtt.Client, userdata: Any, number: int, codes: Any, properties: Any
    ) -> None:
        self._codes[number] = [code.value for code in codes]

    def _on_publish(
        self, client: mqtt.Client, userdata: Any, number: int, code: Any, properties: Any
    ) -> None:
        self._codes[number] = [code.value]
