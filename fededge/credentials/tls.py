"""TLS to the broker: the client's context, and an error text for each kind of failure."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Protocol

from fededge.errors import ConfigError
from fededge.storage.files import check_private, read_file

__all__ = ["TlsSettings", "context", "describe_failure", "diagnose"]

CONNECT_SECONDS = 5.0
ALERT_SECONDS = 2.0
"""Seconds to wait for the alert of a broker that refuses our certificate."""

# OpenSSL's error numbers for certificates: X509_V_ERR_…
NOT_YET_VALID, EXPIRED, OTHER_HOST, OTHER_ADDRESS = 9, 10, 62, 64

# TLS alerts about our certificate. OpenSSL's versions name them with '_' or with spaces.
ALERTS = {
    "CERTIFICATE_REQUIRED": "it requires one, and [broker] certificate is not set",
    "ALERT_CERTIFICATE_EXPIRED": "it has expired; get a new one",
    "ALERT_CERTIFICATE_REVOKED": "it was revoked; get a new one",
    "ALERT_UNKNOWN_CA": "the broker does not trust the CA that signed it",
    "ALERT_BAD_CERTIFICATE": "it is damaged or of a kind that the broker does not accept",
    "ALERT_UNSUPPORTED_CERTIFICATE": "it is not a client certificate",
    "ALERT_HANDSHAKE_FAILURE": "the broker may require one, or may not support our ciphers",
}


class TlsSettings(Protocol):
    """The keys of `[broker]` that concern TLS."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tls(self) -> bool: ...
    @property
    def ca(self) -> str: ...
    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...


class _Socket(ssl.SSLSocket):
    """A socket that closes itself when its handshake fails, because paho would leave it open."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def context(broker: TlsSettings) -> ssl.SSLContext | None:
    """The TLS context for the configuration, None without TLS; ConfigError for unusable files."""
    if not broker.tls:
        return None
    made = ssl.create_default_context()
    if broker.ca:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no CA yet, and checks host names
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        _trust(made, Path(broker.ca))
    made.sslsocket_class = _Socket
    if broker.certificate:
        _load_certificate(made, Path(broker.certificate), Path(broker.key))
    return made


def _trust(made: ssl.SSLContext, path: Path) -> None:
    text = read_file("broker.ca", path)
    try:
        made.load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ConfigError(f"broker.ca: '{path}' holds no certificate in PEM form") from None


def _load_certificate(made: ssl.SSLContext, certificate: Path, key: Path) -> None:
    if b"BEGIN CERTIFICATE" not in read_file("broker.certificate", certificate):
        raise ConfigError(f"broker.certificate: '{certificate}' holds no certificate in PEM form")
    text = read_file("broker.key", key)
    if b"PRIVATE KEY" not in text:
        raise ConfigError(f"broker.key: '{key}' holds no private key in PEM form")
    check_private("broker.key", key)
    encrypted = ConfigError(
        f"broker.key: '{key}' is encrypted, and a service cannot type its password; "
        f"decrypt it: openssl pkey -in {key} -out NEW"
    )

    def refuse() -> str:  # without it OpenSSL would prompt on the terminal and block
        raise encrypted

    try:
        made.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            why = f"broker.key: '{key}' is not the key of the certificate '{certificate}'"
        else:
            why = f"broker.certificate: '{certificate}' with key '{key}' cannot be used ({error})"
        raise ConfigError(why) from None


def describe_failure(broker: TlsSettings, error: OSError) -> str:
    """The problem with TLS and its remedy; empty if the error has another cause."""
    where = f"mqtts://{broker.host}:{broker.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{where}: the broker's certificate is refused: {_verify_failure(broker, error)}"
    text = str(error)
    for name, why in ALERTS.items():
        if name in text.upper().replace(" ", "_"):
            return f"{where}: the broker refuses our certificate: {why}"
    if not isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError):
        return ""
    return (
        f"{where}: the server does not speak TLS ({_reason(error)}); "
        "correct [broker] port (usually 8883), or set tls = false"
    )


def _verify_failure(broker: TlsSettings, error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code in (OTHER_HOST, OTHER_ADDRESS):
        return f"it is not for '{broker.host}'; correct [broker] host, or issue one for that name"
    if code == EXPIRED:
        return "it has expired by this machine's clock; renew it, or set the clock"
    if code == NOT_YET_VALID:
        return "it is not valid yet by this machine's clock; set the clock"
    who = f"the CA in '{broker.ca}'" if broker.ca else "a CA that this system trusts"
    return f"it was not signed by {who}; correct [broker] ca ({error.verify_message})"


def _reason(error: OSError) -> str:
    name = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return str(name).replace("_", " ").lower()


def diagnose(broker: TlsSettings) -> str:
    """The reason why the broker closes our connection, if TLS is the reason; else empty."""
    try:
        made = context(broker) or _unverified()
        with (
            socket.create_connection((broker.host, broker.port), CONNECT_SECONDS) as plain,
            made.wrap_socket(plain, server_hostname=broker.host) as secured,
        ):
            if broker.tls:
                _await_alert(secured)
                return ""
    except OSError as error:
        return describe_failure(broker, error) if broker.tls else ""
    where = f"mqtt://{broker.host}:{broker.port}"
    return f"{where}: the broker speaks TLS there; set [broker] tls = true, and ca"


def _await_alert(secured: ssl.SSLSocket) -> None:
    """Wait for the alert: in TLS 1.3 a certificate is refused only after the client's handshake.

    Nothing is sent meanwhile: data that the broker has not read when it closes destroys the alert.
    """
    secured.settimeout(ALERT_SECONDS)
    with contextlib.suppress(TimeoutError):
        secured.recv(1)


def _unverified() -> ssl.SSLContext:
    """A context without verification, to test whether a server speaks TLS; no data is sent."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made
