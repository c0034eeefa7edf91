"""The coordinator signs what it says with Ed25519; an agent goes by what a trusted key has signed.

Messages are signed whole. Each kind has a purpose of its own, so that a signature under one kind
cannot serve as another's; and each names what it is about: a federation or a run of it, and a
device. A state's `issued` grows, so that a copy of an old one is known to be old.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fededge.errors import ConfigError, WireError
from fededge.files import check_private, read_file, write_private
from fededge.wire.messages import (
    Message,
    Presence,
    Reply,
    State,
    TaskMessage,
    decode,
    encode,
)

__all__ = [
    "SigningKey",
    "make_keys",
    "read_signing_key",
    "read_trusted_keys",
    "sign",
    "signed_by",
    "verify",
]

SigningKey = Ed25519PrivateKey

S = TypeVar("S", bound=State | TaskMessage | Reply | Presence)

PURPOSES: dict[type[Message], bytes] = {
    State: b"fededge state v1\n",
    TaskMessage: b"fededge task v1\n",
    Reply: b"fededge reply v1\n",
    Presence: b"fededge presence v1\n",
}
"""Stands before what is signed: a signature under something else cannot serve as one of these."""

PEM = serialization.Encoding.PEM
PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def make_keys(private: Path, public: Path) -> None:
    """Write a new pair of keys; an old one is never overwritten."""
    for path in (private, public):
        if path.exists():
            raise ConfigError(f"'{path}' is there already; move it away, or choose another --out")
    key = Ed25519PrivateKey.generate()
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_private(private, key.private_bytes(PEM, pkcs8, plain))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(PEM, spki))


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
    """The keys in a file: several while one replaces another."""
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


def sign(message: S, key: Ed25519PrivateKey) -> S:
    return msgspec.structs.replace(message, signature=key.sign(_signed(message)).hex())


def verify(message: S, keys: tuple[Ed25519PublicKey, ...]) -> None:
    """Return if one of the keys signed this message; a WireError says what is wrong with it."""
    if not message.signature:
        raise WireError("it is not signed, and this device trusts signed messages only")
    if not signed_by(message, keys):
        raise WireError("its signature is not of a key that this device trusts")


def signed_by(message: S, keys: tuple[Ed25519PublicKey, ...]) -> bool:
    signature, data = bytes.fromhex(message.signature), _signed(message)
    return any(_fits(key, signature, data) for key in keys)


def _fits(key: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _signed(message: S) -> bytes:
    """The bytes under a signature: read back first, so that both sides write numbers alike."""
    kind = type(message)
    bare = msgspec.structs.replace(message, signature="")
    return PURPOSES[kind] + encode(decode(encode(bare), kind))
