"""The way to the broker: its name, its port, TLS, and its answer to CONNECT."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
from collections.abc import Iterator

import msgspec

from fededge.config import BrokerConfig
from fededge.credentials import tls
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.subject import Subject
from fededge.errors import TransportError
from fededge.transport.probing import Probing, Welcome

__all__ = ["broker", "handshake"]

OLD_TIMEOUT = 1.5
"""Seconds for the attempt in MQTT 3.1.1, after one in MQTT 5 got no answer."""

UNKNOWN_PROTOCOL, NOT_AUTHORISED = 0x84, frozenset({0x86, 0x87})
VERIFY = {
    tls.OTHER_HOST: "tls-other-name",
    tls.OTHER_ADDRESS: "tls-other-name",
    tls.EXPIRED: "tls-expired",
    tls.NOT_YET_VALID: "tls-not-yet-valid",
}


def broker(subject: Subject, stack: contextlib.ExitStack) -> Iterator[Diagnosis]:
    """Open the connection that the other checks share, or say why there is none."""
    settings = subject.config.broker
    for check in (_resolve, _reach, _secure):
        name, what = check(settings, subject.box.timeout)
        if name:
            yield found(name, what, **subject.values)
            return
    try:
        line = stack.enter_context(Probing(settings, subject.box.timeout))
    except (OSError, TransportError) as error:
        yield found("connection-refused", f"{_where(settings)}: {error}", **subject.values)
        return
    name, what = _answer(settings, line, subject.box.timeout)
    if name:
        yield found(name, what, **subject.values)
        return
    subject.line, subject.welcome = line, line.welcome


Trouble = tuple[str, str]
"""The name of a finding and what is wrong; two empty texts if nothing is."""

FINE: Trouble = ("", "")


def _where(settings: BrokerConfig) -> str:
    return f"{settings.host}:{settings.port}"


def _resolve(settings: BrokerConfig, timeout: float) -> Trouble:
    """Look the name up in a thread, for a dead name server can block for half a minute."""
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
            answers.put("")
        except OSError as error:
            answers.put(error.strerror or str(error))

    threading.Thread(target=look_up, daemon=True).start()
    try:
        why = answers.get(timeout=timeout)
    except queue.Empty:
        why = f"no name server answered in {timeout:.0f} s"
    return ("broker-name-unknown", f"'{settings.host}' has no address: {why}") if why else FINE


def _reach(settings: BrokerConfig, timeout: float) -> Trouble:
    where = _where(settings)
    try:
        socket.create_connection((settings.host, settings.port), timeout).close()
    except ConnectionRefusedError:
        return "broker-refused", f"{where}: nothing listens on this port"
    except TimeoutError:
        return "broker-silent", f"{where}: no answer in {timeout:.0f} s"
    except OSError as error:
        return "broker-silent", f"{where}: cannot be reached ({error.strerror or error})"
    return FINE


def handshake(settings: BrokerConfig, timeout: float) -> float:
    """Make the TLS handshake; the last second of the broker's certificate as Unix time."""
    context = tls.context(settings)
    assert context is not None
    with (
        socket.create_connection((settings.host, settings.port), timeout) as plain,
        context.wrap_socket(plain, server_hostname=settings.host) as secured,
    ):
        facts = secured.getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(facts["notAfter"])))


def _secure(settings: BrokerConfig, timeout: float) -> Trouble:
    if not settings.tls:
        return FINE
    try:
        handshake(settings, timeout)
    except ssl.SSLCertVerificationError as error:
        kind = VERIFY.get(error.verify_code, "tls-untrusted")
        return kind, tls.describe_failure(settings, error)
    except TimeoutError:
        return "broker-silent", f"{_where(settings)}: no TLS handshake in {timeout:.0f} s"
    except OSError as error:
        return "tls-not-spoken", tls.describe_failure(settings, error) or f"no TLS ({error})"
    return FINE


def _answer(settings: BrokerConfig, line: Probing, timeout: float) -> Trouble:
    """Judge the broker's answer to CONNECT."""
    where = _where(settings)
    if line.welcome is not None:
        return _refusal(settings, line.welcome)
    if not line.lost:
        if settings.protocol == "5" and _speaks_old(settings, min(timeout, OLD_TIMEOUT)):
            return "mqtt-version", f"{where}: the broker answers MQTT 3.1.1, and ignores MQTT 5"
        return "broker-silent", f"{where}: connected, but no answer in {timeout:.0f} s"
    why = tls.diagnose(settings)
    if why:
        return ("certificate-refused" if settings.tls else "tls-expected"), why
    if settings.protocol == "5" and _speaks_old(settings, timeout):
        return "mqtt-version", f"{where}: the broker speaks MQTT 3.1.1, and hangs up at MQTT 5"
    return "broker-not-mqtt", f"{where}: the server hangs up at MQTT {settings.protocol}"


def _speaks_old(settings: BrokerConfig, timeout: float) -> bool:
    """True if the broker answers in MQTT 3.1.1."""
    old = msgspec.structs.replace(settings, protocol="3.1.1")
    try:
        with Probing(old, timeout) as line:
            return line.welcome is not None
    except OSError:
        return False


def _refusal(settings: BrokerConfig, welcome: Welcome) -> Trouble:
    if welcome.accepted:
        return FINE
    user = f"user '{settings.username}'" if settings.username else "a client without a user name"
    what = f"{_where(settings)}: the broker refuses {user} ({welcome.reason})"
    if welcome.code == UNKNOWN_PROTOCOL:
        return "mqtt-version", f"{what} with MQTT {settings.protocol}"
    return ("login-refused" if welcome.code in NOT_AUTHORISED else "connection-refused"), what
