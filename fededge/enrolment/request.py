"""A box's request for a certificate, signed with its own key, and the key's fingerprint.

A request comes from anybody: its size, its kind of key, its signature and its name are checked, and
nothing else of it counts.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fededge.broker.access_list import COORDINATOR, ENROL
from fededge.credentials.certificates import BROKER, CA, PublicKey, private_pem
from fededge.errors import ConfigError
from fededge.storage.files import check_private, read_file, write_private
from fededge.wire.topics import check_name

__all__ = [
    "LARGEST_REQUEST",
    "EnrolmentRequest",
    "check_device",
    "fingerprint",
    "make_request",
    "read_key",
    "read_request",
    "same_fingerprint",
]

LARGEST_REQUEST = 4096
"""Bytes of a request; one with a P-256 key has about 400."""

TAKEN = frozenset({CA, BROKER, ENROL, COORDINATOR})
"""Names of the fleet's other certificates: no device may have them."""

GROUPS, DIGITS = 8, 4
"""A fingerprint's groups and their hexadecimal digits: 128 bits, which nobody can find again."""


@dataclass(frozen=True)
class EnrolmentRequest:
    """A request whose signature proves that the box has the key."""

    device: str
    key: PublicKey

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


def check_device(what: str, name: str) -> str:
    """Refuse an id that cannot be part of a topic, or that is not for a device."""
    check_name(what, name)
    if name in TAKEN:
        raise ConfigError(f"{what} {name}: this name is taken; give the device another id")
    return name


def fingerprint(key: PublicKey) -> str:
    """The first 128 bits of the key's SHA-256, in groups that people can compare."""
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(key.public_bytes(serialization.Encoding.DER, spki)).hexdigest()
    return "-".join(digest[DIGITS * i : DIGITS * (i + 1)] for i in range(GROUPS))


def same_fingerprint(typed: str, wanted: str) -> bool:
    """Compare whole fingerprints; the case and the marks between the groups are free."""
    return re.sub("[^0-9a-f]", "", typed.lower()) == wanted.replace("-", "")


# On the box


def make_request(path: Path, device: str) -> bytes:
    """A request in PEM form, for the key in this file; a missing key is made."""
    check_device("device", device)
    if not path.exists():
        write_private(path, private_pem(ec.generate_private_key(ec.SECP256R1())))
    key = read_key(path)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The box's own key."""
    data = read_file("key", path)
    check_private("key", path)
    try:
        found = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"key: '{path}' holds no elliptic-curve key; move it away")
    return found


# At the operator


def read_request(data: bytes) -> EnrolmentRequest:
    """Check a request from anybody; ConfigError says what is wrong with it."""
    if len(data) > LARGEST_REQUEST:
        raise ConfigError(
            f"the request has {len(data):,} bytes, the limit is {LARGEST_REQUEST:,}: it is not one "
            "of `fededge enroll`"
        )
    try:
        found = x509.load_pem_x509_csr(data)
        key, signed, names = found.public_key(), found.is_signature_valid, [*found.subject]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError("the file holds no request of `fededge enroll`") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("the request's key is not of the curve P-256; make it: fededge enroll")
    if not signed:
        raise ConfigError("the request is not signed with its own key: it was changed on its way")
    if len(names) != 1 or names[0].oid != NameOID.COMMON_NAME:
        raise ConfigError("the request must name its device, and nothing else")
    return EnrolmentRequest(check_device("device", str(names[0].value)), key)
