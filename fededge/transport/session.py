"""An MQTT session that outlives its connections. The one file that knows paho.

Callbacks only put events into the inbox; the thread that reads it decides. Subscriptions are data
and are sent again on every connect; the owner hears of every connect and announces itself anew.
A message is acknowledged to the broker only once its reader has handled it.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from fededge.config import BrokerConfig
from fededge.credentials import tls
from fededge.errors import TransportError
from fededge.transport.backpressure import Backlog
from fededge.transport.outbox import Outbox, Parcel

__all__ = ["Connected", "Delivered", "Event", "Failed", "Lost", "Message", "Session", "Will"]

MOST_UNREAD = 64
"""Messages that the broker may have on the way to us."""

MOST_PACKET = 17 * 1024 * 1024
"""Bytes of a message: the largest chunk, its header, its topic. The broker keeps others back."""

LAST_WORDS = 5.0
"""Seconds that a stop waits for its last words to be delivered."""

NOT_AUTHORISED = {0x86, 0x87}
UNKNOWN_PROTOCOL = 0x84
PASSWORD = "the password in FEDEDGE_PASSWORD"
TAKEN_OVER = 0x8E

CALLBACKS = ("on_connect", "on_disconnect", "on_connect_fail", "on_message", "on_publish")
"""Of paho's client, and with an underscore before, of ours."""


@dataclass(frozen=True)
class Will:
    """What the broker says for us, retained, when our connection breaks."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Connected:
    """The broker took us in; `resumed`: it still knows what it had for us."""

    resumed: bool = False


@dataclass(frozen=True)
class Delivered:
    """The broker has a message of ours. Its number goes to `Session.delivered`."""

    number: int


@dataclass(frozen=True)
class Lost:
    """The connection is gone; paho is trying to get it back."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The connection is gone for good: a human has to look at it."""

    reason: str


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    retained: bool
    ack: Callable[[], None] = field(repr=False, compare=False)


Event = Connected | Delivered | Lost | Failed | Message


class Session:
    """One client of the broker. The constructor only stores; `start` and `stop` do."""

    def __init__(
        self,
        broker: BrokerConfig,
        client_id: str,
        inbox: queue.SimpleQueue[Any],
        will: Will | None = None,
        keep_seconds: int = 0,
    ) -> None:
        """`keep_seconds`: how long the broker keeps subscriptions and messages for us."""
        self.broker = broker
        self.client_id = client_id
        self.inbox = inbox
        self.will = will
        self.keep_seconds = keep_seconds
        self._subscriptions: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._verdict: queue.Queue[str] = queue.Queue()
        self._client: mqtt.Client | None = None
        self._stopping = False
        self._taken_in = False
        self._outbox = Outbox(self._hand)
        self._counting = False
        self._backlog = Backlog()
        self._hung_up = False

    @property
    def address(self) -> str:
        scheme = "mqtts" if self.broker.tls else "mqtt"
        return f"{scheme}://{self.broker.host}:{self.broker.port}"

    def start(self) -> None:
        """Connect, waiting for the broker as long as configured; then keep connected."""
        client = self._client = self._make_client()
        deadline = time.monotonic() + self.broker.wait
        while True:
            try:
                self._connect(client)
                break
            except OSError as error:
                secured = tls.sentence(self.broker, error) if self.broker.tls else ""
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise TransportError(secured) from None  # will not get better by itself
                if time.monotonic() >= deadline:
                    raise TransportError(
                        secured
                        or f"{self.address}: no broker answers ({_words(error)}); "
                        "start it, or correct [broker] host and port"
                    ) from None
                time.sleep(0.2)
        client.loop_start()
        self._await_verdict(max(deadline - time.monotonic(), 5.0))

    def stop(self, last_words: Will | None = None) -> None:
        """Say goodbye: the last words are delivered before the connection closes."""
        self._stopping = True
        client = self._client
        if client is None:
            return
        if last_words is not None and client.is_connected():
            said = client.publish(last_words.topic, last_words.payload, qos=1, retain=True)
            said.wait_for_publish(LAST_WORDS)
        client.disconnect()
        client.loop_stop()
        self._client = None  # paho closes its last sockets when nothing refers to it any more
        for name in CALLBACKS:
            setattr(client, name, None)

    def subscribe(self, *topics: str, lasting: bool = True, as_published: bool = False) -> None:
        """Hear these topics; again, to hear once more what is retained there.

        Args:
            topics: may have wildcards.
            lasting: also after every new connection.
            as_published: a new message that is to be retained is marked so, too, and what we say
                there ourselves does not come back (MQTT 5).
        """
        wanted = dict.fromkeys(topics, as_published)
        with self._lock:
            if lasting:
                self._subscriptions.update(wanted)
            if topics and self._client is not None and self._client.is_connected():
                self._client.subscribe(self._filters(wanted))

    def _filters(self, wanted: Mapping[str, bool]) -> list[Any]:
        """Topics for paho, each with how it is to be heard."""
        if self.broker.protocol != "5":
            return [(topic, 1) for topic in wanted]
        return [
            (topic, SubscribeOptions(qos=1, noLocal=exact, retainAsPublished=exact))
            for topic, exact in wanted.items()
        ]

    def unsubscribe(self, *topics: str) -> None:
        with self._lock:
            for topic in topics:
                self._subscriptions.pop(topic, None)
            if topics and self._client is not None and self._client.is_connected():
                self._client.unsubscribe([*topics])

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expiry: int | None = None
    ) -> None:
        """Hand a message to paho, at least once; it waits there while the connection is down."""
        self._publish(topic, payload, retain, expiry)

    def send(self, parcel: Parcel) -> None:
        """Publish a chunk when the ones before it have arrived."""
        self._counting = True
        self._outbox.put(parcel)

    def sending(self, topic: str) -> bool:
        """Whether a chunk of this topic waits or is on its way."""
        return topic in self._outbox

    def drop(self, prefix: str) -> None:
        """Do not send what still waits below this topic."""
        self._outbox.drop(prefix)

    def delivered(self, event: Delivered) -> None:
        """Go on with what waits; for the thread that reads the inbox."""
        self._outbox.arrived(event.number)

    @property
    def idle(self) -> bool:
        """Whether the broker has every chunk that was to be sent."""
        return self._outbox.empty

    def _hand(self, parcel: Parcel, payload: bytes) -> int:
        return self._publish(parcel.topic, payload, parcel.retain, parcel.expiry)

    def _publish(self, topic: str, payload: bytes, retain: bool, expiry: int | None) -> int:
        assert self._client is not None, "publish before start"
        properties = None
        if expiry is not None and self.broker.protocol == "5":
            properties = Properties(PacketTypes.PUBLISH)
            properties.MessageExpiryInterval = expiry
        return self._client.publish(topic, payload, 1, retain, properties).mid

    def _make_client(self) -> mqtt.Client:
        five = self.broker.protocol == "5"
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            clean_session=None if five else not self.keep_seconds,
            protocol=mqtt.MQTTv5 if five else mqtt.MQTTv311,
            reconnect_on_failure=True,
            manual_ack=True,
        )
        client.max_queued_messages_set(0)
        client.reconnect_delay_set(min_delay=1, max_delay=30)
        context = tls.context(self.broker)
        if context is not None:
            client.tls_set_context(context)
        if self.broker.username:
            client.username_pw_set(self.broker.username, self.broker.password)
        if self.will is not None:
            client.will_set(self.will.topic, self.will.payload, qos=1, retain=True)
        for name in CALLBACKS:
            setattr(client, name, getattr(self, f"_{name}"))
        client.on_socket_open = _no_delay
        return client

    def _connect(self, client: mqtt.Client) -> None:
        host, port, keepalive = self.broker.host, self.broker.port, self.broker.keepalive
        if self.broker.protocol != "5":
            client.connect(host, port, keepalive)
            return
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self.keep_seconds
        properties.ReceiveMaximum = MOST_UNREAD
        properties.MaximumPacketSize = MOST_PACKET
        clean = not self.keep_seconds
        client.connect(host, port, keepalive, clean_start=clean, properties=properties)

    def _await_verdict(self, seconds: float) -> None:
        try:
            refusal = self._verdict.get(timeout=seconds)
        except queue.Empty:
            refusal = tls.diagnose(self.broker) or self._silence(seconds)
        if refusal:
            self.stop()
            raise TransportError(refusal)

    def _silence(self, seconds: float) -> str:
        """Why the broker has not said whether it takes us in: it hangs up, or it is slow."""
        if self._hung_up:
            return f"{self.address}: what answers there hangs up at once; {self._other_protocol}"
        return (
            f"{self.address}: what listens there said nothing for {seconds:.0f} s: it is a broker "
            "that is busy (raise [broker] wait), or none (correct [broker] port)"
        )

    @property
    def _other_protocol(self) -> str:
        return f"it does not speak MQTT {self.broker.protocol}: correct [broker] protocol and port"

    def _on_connect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if code.is_failure:
            self._refused(client, code)
            return
        with self._lock:
            for filters in self._filters(self._subscriptions):
                client.subscribe([filters])
        self._taken_in = True
        self._verdict.put("")
        self.inbox.put(Connected(bool(flags.session_present)))

    def _refused(self, client: mqtt.Client, code: ReasonCode) -> None:
        """A wrong password does not get right by trying again; a busy broker may."""
        user = f"user '{self.broker.username}'" if self.broker.username else "an anonymous client"
        remedy = {
            UNKNOWN_PROTOCOL: self._other_protocol,
            **dict.fromkeys(NOT_AUTHORISED, "correct [broker] username, and " + PASSWORD),
        }.get(code.value)
        if remedy is None:
            self._verdict.put(f"{self.address}: the broker refuses the connection ({code})")
            return
        reason = f"{self.address}: the broker refuses {user} ({code}); {remedy}"
        self._give_up(client, reason)
        self._verdict.put(reason)

    def _on_disconnect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if self._stopping:
            return
        taken_in, self._taken_in = self._taken_in, False
        self._hung_up = not taken_in
        if code.value == TAKEN_OVER:
            self._give_up(client, f"another client took over the name '{self.client_id}'")
        elif taken_in or not self.broker.tls:
            self.inbox.put(Lost(str(code)))
        else:
            self._unwelcome()

    def _on_connect_fail(self, client: mqtt.Client, userdata: Any) -> None:
        """paho's next try failed, and will not say why; with TLS it may be a certificate."""
        if self.broker.tls and not self._stopping:
            self._unwelcome()

    def _unwelcome(self) -> None:
        """The broker hung up before it took us in: say so, if it is a matter of certificates."""
        reason = tls.diagnose(self.broker)
        if reason:
            self._verdict.put(reason)
            self.inbox.put(Lost(reason))

    def _give_up(self, client: mqtt.Client, reason: str) -> None:
        self._stopping = True
        client.disconnect()  # also ends paho's reconnecting
        self.inbox.put(Failed(reason))

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        payload, number, qos = bytes(message.payload), message.mid, message.qos

        def ack() -> None:
            """Refused if the connection has gone meanwhile: the broker will send it again."""
            self._backlog.remove(len(payload))
            if qos:
                client.ack(number, qos)

        self._backlog.add(len(payload))
        self.inbox.put(Message(message.topic, payload, message.retain, ack))

    def _on_publish(
        self, client: mqtt.Client, userdata: Any, number: int, code: ReasonCode, properties: Any
    ) -> None:
        if self._counting:  # who sends no chunks need not hear of it
            self.inbox.put(Delivered(number))


def _no_delay(client: mqtt.Client, userdata: Any, sock: Any) -> None:
    """Without it a small message waits for the TCP acknowledgement of the one before, 40 ms."""
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _words(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
