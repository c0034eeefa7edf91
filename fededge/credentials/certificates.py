"""TLS certificates for a small fleet: a CA, one for the broker, one for each client.

Existing certificates are kept, so that devices can be added later.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fededge.errors import ConfigError
from fededge.storage.files import read_file, write_private, write_public

__all__ = [
    "BROKER",
    "CA",
    "PublicKey",
    "add_certificates",
    "certify",
    "private_pem",
    "read_authority",
]

CA = "ca"
BROKER = "broker"
CA_YEARS = 10
BACKDATED = datetime.timedelta(days=1)
"""Certificates are valid from this long before now, because a box's clock may be behind."""


PublicKey = ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class _Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def add_certificates(folder: Path, host: str, names: Iterable[str], days: int) -> list[str]:
    """Make the certificates that are missing in `folder`; return the names of the new ones.

    Args:
        folder: gets `<name>.crt` and `<name>.key` for the CA, the broker and each of `names`.
        host: the name or address under which clients reach the broker.
        names: the clients; each is the common name in its certificate.
        days: validity of the certificates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made: list[str] = []
    if not _exists(folder, CA):
        _write(folder, CA, _authority())
        made.append(CA)
    authority = read_authority(folder)
    if not _exists(folder, BROKER):
        _write(folder, BROKER, _issued(authority, BROKER, days, host))
        made.append(BROKER)
    for name in names:
        if not _exists(folder, name):
            _write(folder, name, _issued(authority, name, days))
            made.append(name)
    return made


def _authority() -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("FedEdge fleet CA")
    builder = _builder(name, name, key.public_key(), 365 * CA_YEARS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def read_authority(folder: Path) -> _Pair:
    """The CA of a folder, with its key."""
    return _read(folder, CA)


def _issued(authority: _Pair, name: str, days: int, host: str = "") -> _Pair:
    """A new key with its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _Pair(certify(authority, name, key.public_key(), days, host), key)


def certify(
    authority: _Pair, name: str, key: PublicKey, days: int, host: str = ""
) -> x509.Certificate:
    """A broker's certificate (with `host`) or a client's; neither is valid as the other."""
    builder = _builder(_name(name), authority.certificate.subject, key, days)
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if host else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(issuer, critical=False)
    )
    if host:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general(host)]), critical=False
        )
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(identifier, critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _exists(folder: Path, name: str) -> bool:
    return (folder / f"{name}.crt").exists()


def _write(folder: Path, name: str, pair: _Pair) -> None:
    """Write the key first, so that an existing certificate always has its key."""
    write_private(folder / f"{name}.key", private_pem(pair.key))
    pem = pair.certificate.public_bytes(serialization.Encoding.PEM)
    write_public(folder / f"{name}.crt", pem)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, plain)


def _read(folder: Path, name: str) -> _Pair:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    try:
        found = serialization.load_pem_private_key(read_file("--out", key), None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError("not an elliptic-curve key")
        return _Pair(x509.load_pem_x509_certificate(read_file("--out", certificate)), found)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--out: '{certificate}' and its key cannot be used: {error}") from None
