"""The operator's answer to a box: its certificate, the CA, and where its federation is.

It holds no secret. Both sides check it: the operator's before a certificate is made, the box
before it believes one.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Meta, Struct

from fededge.credentials.certificates import PublicKey, certify, read_authority
from fededge.credentials.inspection import common_name
from fededge.enrolment.request import EnrolmentRequest, check_device, fingerprint
from fededge.errors import ConfigError
from fededge.storage.files import write_public
from fededge.wire.topics import check_name

__all__ = [
    "LARGEST_ANSWER",
    "EnrolmentAnswer",
    "TrustedAnswer",
    "accept",
    "ca_fingerprint",
    "read_answer",
]

LARGEST_ANSWER = 32 * 1024
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?")
"""Names and addresses of a broker."""

Pem = Annotated[str, Meta(max_length=8192)]


class EnrolmentAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """All that a box needs beside its own key and its data; `trusted_key` may be empty."""

    device: Annotated[str, Meta(max_length=64)]
    federation: Annotated[str, Meta(max_length=64)]
    host: Annotated[str, Meta(max_length=254)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    certificate: Pem
    ca: Pem
    trusted_key: Pem = ""


# At the operator


def accept(folder: Path, request: EnrolmentRequest, days: int, replace: bool) -> str:
    """Make a certificate for the request and keep it in the CA's folder; its PEM text.

    A device that is enrolled gets one for the same key only, which renews it. `replace`: for
    another key too.
    """
    authority = read_authority(folder)
    path = folder / f"{request.device}.crt"
    known = _key_of(path)
    if known not in (None, request.key) and not replace:
        raise ConfigError(
            f"{request.device} is enrolled with another key ({fingerprint(known)}); if this is "
            "the same box with a new key, give --replace; if not, give the box another id"
        )
    made = certify(authority, request.device, request.key, days)
    pem = made.public_bytes(serialization.Encoding.PEM)
    write_public(path, pem)
    if known not in (None, request.key):
        (folder / f"{request.device}.key").unlink(missing_ok=True)  # of the certificate before
    return pem.decode("ascii")


def _key_of(path: Path) -> PublicKey | None:
    if not path.exists():
        return None
    found = _public_key(_certificate(path.read_text("utf-8", errors="replace"), f"'{path}'"))
    return found if isinstance(found, ec.EllipticCurvePublicKey) else None


def ca_fingerprint(pem: str) -> str:
    """The fingerprint of a CA's key."""
    key = _public_key(_certificate(pem, "the CA"))
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError("the CA's key is not of an elliptic curve")
    return fingerprint(key)


def _certificate(pem: str, what: str) -> x509.Certificate:
    with contextlib.suppress(ValueError):
        return x509.load_pem_x509_certificate(pem.encode())
    raise ConfigError(f"{what} is no certificate in PEM form")


def _public_key(certificate: x509.Certificate) -> object:
    """The certificate's key; None if it is of a kind that nobody here knows."""
    try:
        return certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return None


# On the box


@dataclass(frozen=True)
class TrustedAnswer:
    """An answer for this box's key: its certificate is the CA's."""

    facts: EnrolmentAnswer
    ca_fingerprint: str


def read_answer(data: bytes, device: str, key: PublicKey) -> TrustedAnswer:
    """Check an answer that may come from anybody; ConfigError says what is wrong with it."""
    if len(data) > LARGEST_ANSWER:
        raise ConfigError(f"the answer has {len(data):,} bytes, the limit is {LARGEST_ANSWER:,}")
    try:
        facts = msgspec.json.decode(data, type=EnrolmentAnswer)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise ConfigError("the file holds no answer of `fededge devices accept`") from None
    check_device("device", facts.device)
    check_name("federation", facts.federation)
    if not HOST.fullmatch(facts.host):
        raise ConfigError("the answer's broker has no valid name")
    _check_certificate(facts, device, key)
    return TrustedAnswer(facts, ca_fingerprint(facts.ca))


def _check_certificate(facts: EnrolmentAnswer, device: str, key: PublicKey) -> None:
    own, ca = _certificate(facts.certificate, "the answer"), _certificate(facts.ca, "its CA")
    try:
        name = common_name(own)
    except ValueError:
        name = ""
    if facts.device != device or name != device:
        raise ConfigError(f"the answer is for device '{facts.device}', this one is '{device}'")
    if _public_key(own) != key:
        raise ConfigError(
            f"the answer is for another key than this box's ({fingerprint(key)}); ask again: "
            "fededge enroll --request FILE"
        )
    try:
        own.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise ConfigError("the answer's certificate is not of its CA") from None
