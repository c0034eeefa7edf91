"""Ed25519 keys in PEM files: the coordinator's signing key, and the public keys agents trust."""

from __future__ import annotations

import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fededge.errors import ConfigError
from fededge.storage.files import check_private, read_file, write_private, write_public

__all__ = [
    "SIGNING_KEY",
    "TRUSTED_KEYS",
    "SigningKey",
    "make_keys",
    "new_key_pem",
    "public_pem",
    "read_signing_key",
    "read_trusted_keys",
]

SigningKey = Ed25519PrivateKey

SIGNING_KEY, TRUSTED_KEYS = "signing.key", "signing.pub"
"""The file names that `fededge init` gives to the keys, and that a rotation relies on."""

PEM = serialization.Encoding.PEM
PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def make_keys(private: Path, public: Path) -> dict[Path, bool]:
    """Write a pair of keys and keep files that are there; the value is True for a new file.

    The public key of a private one that is there is written again if it is missing.
    """
    if public.exists() and not private.exists():
        raise ConfigError(
            f"'{public}' is there without its private key '{private}': restore that, or move the "
            "public key away"
        )
    made = {private: not private.exists(), public: not public.exists()}
    if made[private]:
        write_private(private, new_key_pem())
    own = read_signing_key(private)
    if made[public]:
        write_public(public, public_pem(own))
    elif own.public_key() not in read_trusted_keys(public):
        raise ConfigError(f"'{public}' is not the public key of '{private}'; move one of them away")
    return made


def new_key_pem() -> bytes:
    """A new signing key."""
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Ed25519PrivateKey.generate().private_bytes(PEM, pkcs8, plain)


def public_pem(key: Ed25519PrivateKey) -> bytes:
    """The public half of a signing key."""
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(PEM, spki)


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    data = read_file("signing_key", path)
    check_private("signing_key", path)
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"signing_key: '{path}' holds no private Ed25519 key; make one: fededge init key"
        )
    return key


def read_trusted_keys(path: Path) -> tuple[Ed25519PublicKey, ...]:
    """Read the public keys in a file; there are several during a key rotation."""
    keys: list[Ed25519PublicKey] = []
    for block in PUBLIC.findall(read_file("trusted_key", path)):
        try:
            key = serialization.load_pem_public_key(block)
        except (ValueError, UnsupportedAlgorithm):
            continue
        if isinstance(key, Ed25519PublicKey):
            keys.append(key)
    if not keys:
        raise ConfigError(
            f"trusted_key: '{path}' holds no public Ed25519 key; it is the signing.pub of "
            "fededge init key"
        )
    return tuple(keys)
