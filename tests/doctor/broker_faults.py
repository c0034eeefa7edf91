"""Faults of the broker, of the way to it, and of this side's rights there."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from fededge.broker.local import Broker
from tests.doctor.site import HOST, Patient, certify, open_broker, renamed
from tests.mosquitto import enterable, free_port

__all__ = ["BROKER_FAULTS"]


def unknown_name(it: Patient) -> None:
    it.broker["host"] = "broker.invalid"


def nothing_listens(it: Patient) -> None:
    it.broker["port"] = free_port()


def serve(it: Patient, answer: Callable[[socket.socket], None]) -> None:
    """A server that is no Mosquitto, for one fault."""
    server = it.stack.enter_context(socket.create_server((HOST, 0)))
    it.values["broker"] = {"host": HOST, "port": server.getsockname()[1]}
    kept: list[socket.socket] = []

    def loop() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                kept.append(client)
                answer(client)

    threading.Thread(target=loop, daemon=True).start()
    it.stack.callback(close_all, kept)


def close_all(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


def silent_server(it: Patient) -> None:
    serve(it, lambda client: None)


def no_mqtt_server(it: Patient) -> None:
    serve(it, lambda client: client.close())


def broker_without_wildcards(it: Patient) -> None:
    def answer(client: socket.socket) -> None:
        if client.recv(100):
            client.sendall(bytes([0x20, 5, 0, 0, 2, 0x28, 0]))
            client.close()

    serve(it, answer)


def full_broker(it: Patient) -> None:
    def answer(client: socket.socket) -> None:
        if client.recv(100):
            client.sendall(bytes([0x20, 3, 0, 0x97, 0]))  # quota exceeded

    serve(it, answer)


def old_broker(it: Patient) -> None:
    broker = it.stack.enter_context(Broker(it.folder / "old", "python"))
    it.values["broker"] = {"host": HOST, "port": broker.port}
    it.box = renamed(it.box, timeout=5.0)


def tls_forgotten(it: Patient) -> None:
    it.broker["port"] = it.site.ports["tls"]


def tls_on_a_plain_port(it: Patient) -> None:
    it.use_tls("plain")


def another_ca(it: Patient) -> None:
    it.use_tls(ca=str(it.site.strangers / "ca.crt"))


def certificate_for_another_name(it: Patient) -> None:
    it.use_tls(host="localhost")


def brokers_certificate_expired(it: Patient) -> None:
    it.use_tls("expired")


def brokers_certificate_of_tomorrow(it: Patient) -> None:
    it.use_tls("future")


def brokers_certificate_ends_soon(it: Patient) -> None:
    it.use_tls("soon")


def no_certificate(it: Patient) -> None:
    it.values["broker"] = {"host": HOST}
    it.use_tls("mutual")


def certificate_of_another_ca(it: Patient) -> None:
    it.use_certificate(it.site.strangers, "gate-7")
    it.broker["ca"] = str(it.site.pki / "ca.crt")


def own(it: Patient, days: float) -> None:
    """A certificate of this device that ends in so many days."""
    for name in ("ca.crt", "ca.key"):
        (it.folder / name).write_bytes((it.site.pki / name).read_bytes())
    certify(it.folder, "gate-7", days)
    it.use_certificate(it.folder, "gate-7")


def own_certificate_expired(it: Patient) -> None:
    own(it, -0.5)


def own_certificate_ends_soon(it: Patient) -> None:
    own(it, 5.0)


def certificate_of_another_device(it: Patient) -> None:
    it.use_certificate(it.site.pki, "gate-6")


def wrong_password(it: Patient) -> None:
    it.broker["password_file"] = str(it.site.folder / "secrets" / "gate-6.password")


def unknown_user(it: Patient) -> None:
    it.broker["username"] = "gate-99"


def no_login(it: Patient) -> None:
    it.values["broker"] = {"host": HOST, "port": it.site.ports["plain"]}


def login_of_another_device(it: Patient) -> None:
    it.values["broker"] = it.login("gate-6")


def topic_denied(it: Patient) -> None:
    it.values |= {"device": "gate-8", "broker": it.login("gate-8")}


def rules_of_another_federation(it: Patient) -> None:
    it.become_coordinator()
    it.values["federation"] = "doors"


def too_many_rights(it: Patient) -> None:
    it.values |= {"device": "gate-5", "broker": it.login("gate-5")}


def broker_for_everybody(it: Patient) -> None:
    it.use_open(federation="everybody")


def limited(it: Patient, *lines: str) -> None:
    """An open broker with this limit."""
    port = it.stack.enter_context(open_broker(it.folder / "broker", *lines))
    it.use_open(port)


def no_retained_messages(it: Patient) -> None:
    limited(it, "retain_available false")


def quality_of_service_0(it: Patient) -> None:
    limited(it, "max_qos 0")


def small_packets(it: Patient) -> None:
    limited(it, "max_packet_size 10000")


def chunks_are_dropped(it: Patient) -> None:
    """This Mosquitto acknowledges a larger message, and drops it."""
    limited(it, "message_size_limit 3000")
    it.deep = True


PLUGIN = Path("/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so")


def subscriptions_denied(it: Patient) -> None:
    """The dynamic security plugin denies a SUBSCRIBE; an acl_file would keep silent."""
    ground = it.stack.enter_context(enterable())
    access = {"publishClientSend": True, "publishClientReceive": True, "unsubscribe": True}
    facts = {"defaultACLAccess": {**access, "subscribe": False}}
    rules = ground / "rules.json"
    rules.write_text(json.dumps({**facts, "clients": [], "groups": [], "roles": []}))
    rules.chmod(0o666)
    ground.chmod(0o777)
    lines = (f"plugin {PLUGIN}", f"plugin_opt_config_file {rules}")
    it.use_open(it.stack.enter_context(open_broker(ground / "broker", *lines)))


BROKER_FAULTS: dict[Callable[[Patient], None], set[str]] = {
    unknown_name: {"broker-name-unknown"},
    nothing_listens: {"broker-refused"},
    silent_server: {"broker-silent"},
    no_mqtt_server: {"broker-not-mqtt"},
    broker_without_wildcards: {"wildcards-unsupported", "connection-refused"},
    full_broker: {"connection-refused"},
    old_broker: {"mqtt-version"},
    tls_forgotten: {"tls-expected"},
    tls_on_a_plain_port: {"tls-not-spoken"},
    another_ca: {"tls-untrusted"},
    certificate_for_another_name: {"tls-other-name"},
    brokers_certificate_expired: {"tls-expired"},
    brokers_certificate_of_tomorrow: {"tls-not-yet-valid"},
    brokers_certificate_ends_soon: {"tls-expires-soon"},
    no_certificate: {"certificate-refused"},
    certificate_of_another_ca: {"certificate-refused"},
    own_certificate_expired: {"certificate-expired", "certificate-refused"},
    own_certificate_ends_soon: {"certificate-expires-soon"},
    certificate_of_another_device: {"username-not-device", "write-denied"},
    wrong_password: {"login-refused"},
    unknown_user: {"login-refused"},
    no_login: {"login-refused"},
    login_of_another_device: {"username-not-device", "write-denied"},
    topic_denied: {"write-denied"},
    rules_of_another_federation: {"write-denied"},
    too_many_rights: {"access-too-wide"},
    broker_for_everybody: {"broker-open"},
    no_retained_messages: {"retain-unsupported", "broker-open", "federation-unknown"},
    quality_of_service_0: {"qos-too-low", "broker-open", "federation-unknown"},
    small_packets: {"packet-too-small", "broker-open", "federation-unknown"},
    chunks_are_dropped: {"chunk-lost", "broker-open", "federation-unknown"},
    subscriptions_denied: {"read-denied", "broker-open", "federation-unknown"},
}
"""Each fault with all that the doctor finds."""
