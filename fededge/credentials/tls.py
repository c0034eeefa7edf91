"""TLS towards the broker: our side of it, and one sentence for each way in which it fails."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Protocol

from fededge.errors import ConfigError
from fededge.storage.files import check_private, read_file

__all__ = ["TlsSettings", "context", "diagnose", "sentence"]

PATIENCE = 5.0
VERDICT = 2.0
"""Seconds in which a broker that refuses our certificate will have said so."""

# OpenSSL's numbers for what is wrong with a certificate: X509_V_ERR_…
NOT_YET_VALID, EXPIRED, OTHER_HOST, OTHER_ADDRESS = 9, 10, 62, 64

# What a broker says of our certificate, as OpenSSL names the alert; two spellings each, for it
# changed them.
ALERTS = {
    "CERTIFICATE_REQUIRED": "it wants a certificate, and [broker] certificate is not set",
    "ALERT_CERTIFICATE_EXPIRED": "it has expired; get a new one",
    "ALERT_CERTIFICATE_REVOKED": "it was revoked; get a new one",
    "ALERT_UNKNOWN_CA": "another CA signed it than those that the broker trusts",
    "ALERT_BAD_CERTIFICATE": "it is damaged or of a kind that the broker does not take",
    "ALERT_UNSUPPORTED_CERTIFICATE": "it was made for another purpose than a client's",
    "ALERT_HANDSHAKE_FAILURE": "the broker may want one, or other ciphers than ours",
}


class TlsSettings(Protocol):
    """The keys of `[broker]` that decide on TLS."""

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
    """Closes itself when its handshake fails: paho would leave it open."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def context(broker: TlsSettings) -> ssl.SSLContext | None:
    """What the configuration says of TLS; None without it. A file that will not do is refused."""
    if not broker.tls:
        return None
    made = ssl.create_default_context()
    if broker.ca:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no CA yet, and checks host names
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        _trust(made, Path(broker.ca))
    made.sslsocket_class = _Socket
    if broker.certificate:
        _show(made, Path(broker.certificate), Path(broker.key))
    return made


def _trust(made: ssl.SSLContext, path: Path) -> None:
    text = read_file("broker.ca", path)
    try:
        made.load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ConfigError(f"broker.ca: '{path}' holds no certificate in PEM form") from None


def _show(made: ssl.SSLContext, certificate: Path, key: Path) -> None:
    if b"BEGIN CERTIFICATE" not in read_file("broker.certificate", certificate):
        raise ConfigError(f"broker.certificate: '{certificate}' holds no certificate in PEM form")
    text = read_file("broker.key", key)
    if b"PRIVATE KEY" not in text:
        raise ConfigError(f"broker.key: '{key}' holds no private key in PEM form")
    check_private("broker.key", key)
    encrypted = ConfigError(
        f"broker.key: '{key}' is encrypted, and nobody is there to type its password; "
        f"decrypt it: openssl pkey -in {key} -out NEW"
    )

    def refuse() -> str:  # without it OpenSSL would ask on the terminal, and wait for ever
        raise encrypted

    try:
        made.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            why = f"broker.key: '{key}' is not the key of the certificate '{certificate}'"
        else:
            why = f"broker.certificate: '{certificate}' with key '{key}' cannot be used ({error})"
        raise ConfigError(why) from None


def sentence(broker: TlsSettings, error: OSError) -> str:
    """What went wrong with TLS, and what to do; empty if it was something else."""
    where = f"mqtts://{broker.host}:{broker.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{where}: the broker's certificate is refused: {_flaw(broker, error)}"
    text = str(error)
    for name, why in ALERTS.items():
        if name in text.upper().replace(" ", "_"):
            return f"{where}: the broker refuses our certificate: {why}"
    if not isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError):
        return ""
    return (
        f"{where}: what listens there does not speak TLS ({_reason(error)}); "
        "correct [broker] port (8883 by custom), or set tls = false"
    )


def _flaw(broker: TlsSettings, error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code in (OTHER_HOST, OTHER_ADDRESS):
        return f"it is not for '{broker.host}'; correct [broker] host, or make one for that name"
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
    """Why the broker at this address hangs up on us, if it is a matter of TLS; else empty."""
    try:
        made = context(broker) or _careless()
        with (
            socket.create_connection((broker.host, broker.port), PATIENCE) as plain,
            made.wrap_socket(plain, server_hostname=broker.host) as secret,
        ):
            if broker.tls:
                _await_verdict(secret)
                return ""
    except OSError as error:
        return sentence(broker, error) if broker.tls else ""
    where = f"mqtt://{broker.host}:{broker.port}"
    return f"{where}: the broker speaks TLS there; set [broker] tls = true, and ca"


def _await_verdict(secret: ssl.SSLSocket) -> None:
    """With TLS 1.3 a client learns only after its handshake that its certificate was refused.

    Nothing is said meanwhile: what a broker has not read when it hangs up destroys its last word.
    """
    secret.settimeout(VERDICT)
    with contextlib.suppress(TimeoutError):
        secret.recv(1)


def _careless() -> ssl.SSLContext:
    """Only to ask whether anybody speaks TLS; nothing is told to whoever does."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made
