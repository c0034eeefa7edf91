"""Construction of paho's client: protocol version, TLS, credentials, flow control."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from fededge.config import BrokerConfig
from fededge.credentials import tls
from fededge.transport.events import Will

__all__ = ["connect", "make_client", "publish", "subscription_filters", "turn_password"]

RECEIVE_MAXIMUM = 64
"""Messages that the broker may send before the first is acknowledged (flow control)."""

MAX_PACKET = 17 * 1024 * 1024
"""Largest message: a chunk with its header and topic. The broker does not send larger ones."""


def make_client(
    broker: BrokerConfig, client_id: str, will: Will | None, keep_seconds: int
) -> mqtt.Client:
    """A client that is not connected yet."""
    five = broker.protocol == "5"
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if five else not keep_seconds,
        protocol=mqtt.MQTTv5 if five else mqtt.MQTTv311,
        reconnect_on_failure=True,
        manual_ack=True,
    )
    client.max_queued_messages_set(0)
    client.reconnect_delay_set(min_delay=1, max_delay=30)
    context = tls.context(broker)
    if context is not None:
        client.tls_set_context(context)
    if broker.username:
        client.username_pw_set(broker.username, broker.passwords[0])
    if will is not None:
        client.will_set(will.topic, will.payload, qos=1, retain=True)
    client.on_socket_open = _no_delay
    return client


def turn_password(client: mqtt.Client, broker: BrokerConfig) -> None:
    """Try the other password of a rotation with paho's next attempt."""
    turned = [*broker.passwords].index(client.password or "") + 1
    client.username_pw_set(broker.username, broker.passwords[turned % len(broker.passwords)])


def connect(client: mqtt.Client, broker: BrokerConfig, keep_seconds: int) -> None:
    """Open the connection; OSError if the broker is unreachable."""
    host, port, keepalive = broker.host, broker.port, broker.keepalive
    if broker.protocol != "5":
        client.connect(host, port, keepalive)
        return
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = keep_seconds
    properties.ReceiveMaximum = RECEIVE_MAXIMUM
    properties.MaximumPacketSize = MAX_PACKET
    client.connect(host, port, keepalive, clean_start=not keep_seconds, properties=properties)


def publish(
    client: mqtt.Client,
    broker: BrokerConfig,
    topic: str,
    payload: bytes,
    retain: bool,
    expiry: int | None,
) -> int:
    """Hand a message to paho, at least once (QoS 1); return its number."""
    properties = None
    if expiry is not None and broker.protocol == "5":
        properties = Properties(PacketTypes.PUBLISH)
        properties.MessageExpiryInterval = expiry
    return client.publish(topic, payload, 1, retain, properties).mid


def subscription_filters(broker: BrokerConfig, topics: Mapping[str, bool]) -> list[Any]:
    """Topic filters for paho; True: as published and without our own messages (MQTT 5)."""
    if broker.protocol != "5":
        return [(topic, 1) for topic in topics]
    return [
        (topic, SubscribeOptions(qos=1, noLocal=exact, retainAsPublished=exact))
        for topic, exact in topics.items()
    ]


def _no_delay(client: mqtt.Client, userdata: Any, sock: Any) -> None:
    """Set TCP_NODELAY: else a small message waits 40 ms for the TCP ACK of the one before."""
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
