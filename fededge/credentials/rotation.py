"""Rotation of certificates and signing keys: the new ones are made while the old ones are valid."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.credentials.certificates import BROKER, CA, certify, private_pem, read_authority
from fededge.credentials.signing_keys import (
    SIGNING_KEY,
    TRUSTED_KEYS,
    new_key_pem,
    public_pem,
    read_signing_key,
    read_trusted_keys,
)
from fededge.errors import ConfigError
from fededge.storage.files import fsync_folder, read_file, write_private, write_public

__all__ = ["expiring", "finish_key", "prepare_key", "renew"]

NEXT = "next.key"


# Certificates


def expiring(folder: Path, days: int) -> list[str]:
    """The certificates of a folder that expire within so many days; not the CA."""
    limit = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
    names = sorted(path.stem for path in folder.glob("*.crt") if path.stem != CA)
    return [name for name in names if _certificate(folder, name).not_valid_after_utc <= limit]


def renew(folder: Path, name: str, days: int) -> bool:
    """Make a new certificate; True with a new key, False for the key that is on its box alone."""
    authority, old = read_authority(folder), _certificate(folder, name)
    key, host = folder / f"{name}.key", _host(old) if name == BROKER else ""
    public = old.public_key()
    made = ec.generate_private_key(ec.SECP256R1()) if key.exists() else None
    if made is not None:
        public = made.public_key()
        write_private(key, private_pem(made), same_owner=True)  # the broker's is Mosquitto's
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise ConfigError(f"'{folder / name}.crt' is not of an elliptic curve: not of this CA")
    certificate = certify(authority, name, public, days, host)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    write_public(folder / f"{name}.crt", pem)
    return made is not None


def _certificate(folder: Path, name: str) -> x509.Certificate:
    path = folder / f"{name}.crt"
    try:
        return x509.load_pem_x509_certificate(read_file("--out", path))
    except ValueError:
        raise ConfigError(f"--out: '{path}' holds no certificate in PEM form") from None


def _host(certificate: x509.Certificate) -> str:
    """The name that a broker's certificate is for."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [*found.get_values_for_type(x509.DNSName)]
    names += [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return str(names[0])


# Signing keys


def prepare_key(folder: Path) -> None:
    """Make the next signing key; `signing.pub` then holds both public keys."""
    current = read_signing_key(folder / SIGNING_KEY)
    path = folder / NEXT
    if not path.exists():
        write_private(path, new_key_pem())
    _publish(folder, current, read_signing_key(path))


def finish_key(folder: Path) -> None:
    """Sign with the next key from now on, and trust it alone; can be run again."""
    path = folder / NEXT
    if path.exists():
        os.replace(path, folder / SIGNING_KEY)
        fsync_folder(folder)
    elif len(read_trusted_keys(folder / TRUSTED_KEYS)) == 1:
        raise ConfigError(f"{folder}: there is no next key; make one: fededge rotate key")
    _publish(folder, read_signing_key(folder / SIGNING_KEY))


def _publish(folder: Path, *keys: Ed25519PrivateKey) -> None:
    write_public(folder / TRUSTED_KEYS, b"".join(map(public_pem, keys)))
