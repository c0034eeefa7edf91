"""An MQTT session that outlives its connections.

Callbacks only put events into the inbox; the thread that reads it decides. The session subscribes
again on every connect, and the owner gets `Connected` each time to announce itself again. A message
is acknowledged to the broker only after its reader has handled it.
"""

from __future__ import annotations

import queue
import ssl
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.reasoncodes import ReasonCode

from fededge.config import BrokerConfig
from fededge.credentials import tls
from fededge.errors import TransportError
from fededge.transport import paho_client
from fededge.transport.backpressure import Backlog
from fededge.transport.denials import Denials
from fededge.transport.events import Connected, Delivered, Event, Failed, Incoming, Lost, Will
from fededge.transport.outbox import Outbox, Parcel

__all__ = ["Connected", "Delivered", "Event", "Failed", "Incoming", "Lost", "Session", "Will"]

FAREWELL_SECONDS = 5.0
"""Seconds that `stop` waits until its last message is delivered."""

NOT_AUTHORISED = {0x86, 0x87}
UNKNOWN_PROTOCOL = 0x84
PASSWORD = "the password in FEDEDGE_PASSWORD"
TAKEN_OVER = 0x8E

CALLBACKS = (
    *("on_connect", "on_disconnect", "on_connect_fail"),
    *("on_message", "on_publish", "on_subscribe"),
)
"""Attributes of paho's client; our methods have the same names with an underscore."""


class Session:
    """One client of the broker. The constructor only stores; `start` and `stop` do the work."""

    def __init__(
        self,
        broker: BrokerConfig,
        client_id: str,
        inbox: queue.SimpleQueue[Any],
        will: Will | None = None,
        keep_seconds: int = 0,
    ) -> None:
        """`keep_seconds`: the broker keeps our subscriptions and messages for so long."""
        self.broker = broker
        self.client_id = client_id
        self.inbox = inbox
        self.will = will
        self.keep_seconds = keep_seconds
        self._subscriptions: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._first_answer: queue.Queue[str] = queue.Queue()
        self._client: mqtt.Client | None = None
        self._stopping = False
        self._accepted = False
        self._outbox = Outbox(self._hand)
        self._counting = False
        self._backlog = Backlog()
        self._denials = Denials(inbox.put)
        self._hung_up = False

    @property
    def address(self) -> str:
        scheme = "mqtts" if self.broker.tls else "mqtt"
        return f"{scheme}://{self.broker.host}:{self.broker.port}"

    def start(self) -> None:
        """Connect, retrying for `broker.wait` seconds; paho then stays connected."""
        client = self._client = self._make_client()
        deadline = time.monotonic() + self.broker.wait
        while True:
            try:
                paho_client.connect(client, self.broker, self.keep_seconds)
                break
            except OSError as error:
                failure = tls.describe_failure(self.broker, error) if self.broker.tls else ""
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise TransportError(failure) from None  # a retry cannot help
                if time.monotonic() >= deadline:
                    raise TransportError(
                        failure
                        or f"{self.address}: no broker answers ({_reason(error)}); "
                        "start it, or correct [broker] host and port"
                    ) from None
                time.sleep(0.2)
        client.loop_start()
        self._await_answer(max(deadline - time.monotonic(), 5.0))

    def stop(self, last_words: Will | None = None) -> None:
        """Disconnect, after `last_words` (a retained message) is delivered."""
        self._stopping = True
        client = self._client
        if client is None:
            return
        if last_words is not None and client.is_connected():
            sent = client.publish(last_words.topic, last_words.payload, qos=1, retain=True)
            sent.wait_for_publish(FAREWELL_SECONDS)
        client.disconnect()
        client.loop_stop()
        self._client = None  # paho closes its last sockets when it is garbage-collected
        for name in CALLBACKS:
            setattr(client, name, None)

    def subscribe(self, *topics: str, lasting: bool = True, as_published: bool = False) -> None:
        """Subscribe to these topics; subscribing again delivers the retained messages again.

        Args:
            topics: topic filters, with or without wildcards.
            lasting: subscribe again on every connect.
            as_published: keep the retain flag of new messages, and do not receive our own
                messages (MQTT 5).
        """
        wanted = dict.fromkeys(topics, as_published)
        with self._lock:
            if lasting:
                self._subscriptions.update(wanted)
            if topics and self._client is not None and self._client.is_connected():
                self._subscribe(self._client, wanted)

    def unsubscribe(self, *topics: str) -> None:
        with self._lock:
            for topic in topics:
                self._subscriptions.pop(topic, None)
            if topics and self._client is not None and self._client.is_connected():
                self._client.unsubscribe([*topics])

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expiry: int | None = None
    ) -> None:
        """Hand a message to paho (QoS 1), which keeps it while the connection is down."""
        self._publish(topic, payload, retain, expiry)

    def send(self, parcel: Parcel) -> None:
        """Queue a chunk in the outbox, which limits the bytes in flight."""
        self._counting = True
        self._outbox.put(parcel)

    def sending(self, topic: str) -> bool:
        """Return True while a chunk of this topic waits or is in flight."""
        return topic in self._outbox

    def drop(self, prefix: str) -> None:
        """Remove the waiting chunks below this topic."""
        self._outbox.drop(prefix)

    def delivered(self, event: Delivered) -> None:
        """Send the next waiting chunks; called by the thread that reads the inbox."""
        self._outbox.arrived(event.number)

    @property
    def idle(self) -> bool:
        """True if the broker has acknowledged every chunk."""
        return self._outbox.empty

    def _hand(self, parcel: Parcel, payload: bytes) -> int:
        return self._publish(parcel.topic, payload, parcel.retain, parcel.expiry)

    def _publish(self, topic: str, payload: bytes, retain: bool, expiry: int | None) -> int:
        assert self._client is not None, "publish before start"
        number = paho_client.publish(self._client, self.broker, topic, payload, retain, expiry)
        self._denials.sent(number, topic)
        return number

    def _subscribe(self, client: mqtt.Client, wanted: dict[str, bool]) -> None:
        _, number = client.subscribe(paho_client.subscription_filters(self.broker, wanted))
        self._denials.sent(number, *wanted)

    def _make_client(self) -> mqtt.Client:
        client = paho_client.make_client(self.broker, self.client_id, self.will, self.keep_seconds)
        for name in CALLBACKS:
            setattr(client, name, getattr(self, f"_{name}"))
        return client

    def _await_answer(self, seconds: float) -> None:
        """Wait for the broker's answer to CONNECT; TransportError if it refuses or is silent."""
        try:
            refusal = self._first_answer.get(timeout=seconds)
        except queue.Empty:
            refusal = tls.diagnose(self.broker) or self._no_answer(seconds)
        if refusal:
            self.stop()
            raise TransportError(refusal)

    def _no_answer(self, seconds: float) -> str:
        """The reason why CONNECT got no answer: the server hangs up, or it is slow."""
        if self._hung_up:
            return f"{self.address}: the server hangs up at once; {self._other_protocol}"
        return (
            f"{self.address}: the server did not answer for {seconds:.0f} s: it is a busy broker "
            "(raise [broker] wait), or not an MQTT broker (correct [broker] port)"
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
            for topic, exact in self._subscriptions.items():
                self._subscribe(client, {topic: exact})
        self._accepted = True
        self._first_answer.put("")
        self.inbox.put(Connected(bool(flags.session_present)))

    def _refused(self, client: mqtt.Client, code: ReasonCode) -> None:
        """Give up on wrong credentials or a wrong protocol; retry any other refusal."""
        user = f"user '{self.broker.username}'" if self.broker.username else "an anonymous client"
        remedy = {
            UNKNOWN_PROTOCOL: self._other_protocol,
            **dict.fromkeys(NOT_AUTHORISED, "correct [broker] username, and " + PASSWORD),
        }.get(code.value)
        if remedy is None:
            self._first_answer.put(f"{self.address}: the broker refuses the connection ({code})")
            return
        reason = f"{self.address}: the broker refuses {user} ({code}); {remedy}"
        self._give_up(client, reason)
        self._first_answer.put(reason)

    def _on_disconnect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if self._stopping:
            return
        accepted, self._accepted = self._accepted, False
        self._hung_up = not accepted
        if code.value == TAKEN_OVER:
            self._give_up(client, f"another client took over the name '{self.client_id}'")
        elif accepted or not self.broker.tls:
            self.inbox.put(Lost(str(code)))
        else:
            self._report_tls_failure()

    def _on_connect_fail(self, client: mqtt.Client, userdata: Any) -> None:
        """A reconnect of paho failed without a reason; with TLS it may be a certificate."""
        if self.broker.tls and not self._stopping:
            self._report_tls_failure()

    def _report_tls_failure(self) -> None:
        """The broker hung up before it accepted us: report the reason if it is TLS."""
        reason = tls.diagnose(self.broker)
        if reason:
            self._first_answer.put(reason)
            self.inbox.put(Lost(reason))

    def _give_up(self, client: mqtt.Client, reason: str) -> None:
        self._stopping = True
        client.disconnect()  # paho no longer reconnects
        self.inbox.put(Failed(reason))

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        payload, number, qos = bytes(message.payload), message.mid, message.qos

        def ack() -> None:
            """Acknowledge; without effect after a reconnect, when the broker sends it again."""
            self._backlog.remove(len(payload))
            if qos:
                client.ack(number, qos)

        self._backlog.add(len(payload))
        self.inbox.put(Incoming(message.topic, payload, message.retain, ack))

    def _on_publish(
        self, client: mqtt.Client, userdata: Any, number: int, code: ReasonCode, properties: Any
    ) -> None:
        self._denials.published(number, code)
        if self._counting:  # only a sender of chunks needs the event
            self.inbox.put(Delivered(number))

    def _on_subscribe(
        self, client: mqtt.Client, userdata: Any, number: int, codes: Any, properties: Any
    ) -> None:
        self._denials.subscribed(number, codes)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
