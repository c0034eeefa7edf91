"""A broker in pure Python, run as a program: amqtt with fixes that a federation relies on.

amqtt 0.12 speaks MQTT 3.1.1. Without the fixes it sends every client that connects the retained
messages of all subscriptions, queues nothing for clients without a user name, loses unacknowledged
messages when a connection breaks, ignores keep-alive timeouts, allows two connections with one
client id, and disconnects a client when anyone without its password uses its id.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any, ClassVar

import amqtt.broker
from amqtt.errors import AMQTTError, MQTTError
from amqtt.mqtt.connack import NOT_AUTHORIZED, ConnackPacket
from amqtt.mqtt.constants import QOS_1
from amqtt.session import OutgoingApplicationMessage

from fededge.broker.mosquitto import password_matches

__all__ = ["main"]

_SUBSCRIBING = "fededge.subscribing"


class _Connection(amqtt.broker.BrokerProtocolHandler):  # type: ignore[misc]
    """One client's connection; its session outlives it and keeps the client's messages."""

    passwords: ClassVar[dict[str, str] | None] = None

    @classmethod
    async def init_from_connect(
        cls, reader: Any, writer: Any, plugins_manager: Any, loop: Any = None
    ) -> Any:
        handler, session = await super().init_from_connect(reader, writer, plugins_manager, loop)
        # amqtt checks the password only after it has taken over the session of that client id.
        if not cls._knows(session):
            await ConnackPacket.build(0, NOT_AUTHORIZED).to_stream(writer)
            raise MQTTError(f"client {session.client_id}: unknown user or wrong password")
        # MQTT allows one and a half times the keep-alive; paho's pings come just after one.
        session.keep_alive += (session.keep_alive + 1) // 2
        return handler, session

    @classmethod
    def _knows(cls, session: Any) -> bool:
        if cls.passwords is None:
            return True
        stored = cls.passwords.get(session.username or "")
        return stored is not None and password_matches(session.password or "", stored)

    def handle_read_timeout(self) -> None:
        self.reader.feed_eof()

    # amqtt waits 5 s for each acknowledgement, in a task that ends with the connection, and then
    # drops the message. Here it stays in the session until it is acknowledged.
    async def mqtt_publish(self, topic: str, data: bytes, qos: int, retain: bool) -> Any:
        message = _outgoing(self.session, topic, data, qos, retain)
        await self._transmit(message)
        return message

    async def handle_puback(self, puback: Any) -> None:
        self.session.inflight_out.pop(puback.packet_id, None)

    async def _retry_deliveries(self) -> None:
        for message in list(self.session.inflight_out.values()):
            await self._transmit(message)

    async def _transmit(self, message: Any) -> None:
        again = message.publish_packet is not None
        message.publish_packet = message.build_publish_packet(dup=again)
        await self._send_packet(message.publish_packet)


def _outgoing(session: Any, topic: str, data: bytes, qos: int, retain: bool) -> Any:
    number = session.next_packet_id if qos else None
    message = OutgoingApplicationMessage(number, topic, qos, data, retain)
    if number is not None:
        session.inflight_out[number] = message
    return message


class _Broker(amqtt.broker.Broker):  # type: ignore[misc]
    async def _authenticate(self, _session: Any, _listener: Any) -> bool:
        # Done in init_from_connect. amqtt's plugin for anonymous clients would also mark the
        # session so that nothing is queued for it while it is offline.
        return True

    async def add_subscription(self, subscription: tuple[str, int], session: Any) -> Any:
        topic, qos = subscription
        return await super().add_subscription((topic, min(qos, QOS_1)), session)

    async def _handle_subscription(self, client_session: Any, handler: Any, waiter: Any) -> None:
        client_session.attributes[_SUBSCRIBING] = True
        await super()._handle_subscription(client_session, handler, waiter)
        client_session.attributes[_SUBSCRIBING] = False

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Any
    ) -> None:
        # amqtt also calls this when a client connects, once for every filter of every client.
        if session.attributes.get(_SUBSCRIBING):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def _retain_broadcast_message(self, broadcast: Any, qos: int, target: Any) -> None:
        """Queue a message for a client that is offline."""
        try:
            _outgoing(target, broadcast["topic"], broadcast["data"], qos, retain=False)
        except AMQTTError as error:  # 65535 are queued; other subscribers must still get theirs
            self.logger.warning("the queue of %s is full: %s", target.client_id, error)

    async def _delete_session(self, client_id: str) -> None:
        _, old = self._sessions.get(client_id, (None, None))
        await super()._delete_session(client_id)
        if old is not None:
            await old.handle_connection_closed()

    async def _handle_disconnect(self, client_session: Any, handler: Any, waiter: Any) -> None:
        await super()._handle_disconnect(client_session, handler, waiter)
        # The end of a replaced connection must not mark the new one's session as offline.
        _, current = self._sessions.get(client_session.client_id, (None, None))
        if current is not handler and current is not None and current.session is client_session:
            client_session.transitions.connect()


def _read_passwords(path: Path) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return dict(pairs)


async def _serve(host: str, port: str) -> None:
    # No plugins: neither $SYS topics nor a log line per packet. asyncio sets TCP_NODELAY itself.
    listeners = {"default": {"type": "tcp", "bind": f"{host}:{port}"}}
    await _Broker({"listeners": listeners, "plugins": {}}).start()
    await asyncio.Event().wait()


def main(host: str, port: str, passwords: str | None = None) -> None:
    """Serve until killed; there is nothing to save, so SIGTERM needs no handler."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    if passwords is not None:
        _Connection.passwords = _read_passwords(Path(passwords))
    # amqtt has no hook for the class of its connections.
    amqtt.broker.BrokerProtocolHandler = _Connection
    asyncio.run(_serve(host, port))


if __name__ == "__main__":
    main(*sys.argv[1:])
