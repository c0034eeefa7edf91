"""The coordinator signs what it says with Ed25519; an agent goes by what a trusted key has signed.

Messages are signed whole. Each kind has a purpose of its own, so that a signature under one kind
cannot serve as another's; and each names what it is about: a federation or a run of it, and a
device. A state's `issued` grows, so that a copy of an old one is known to be old.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fededge.errors import WireError
from fededge.wire.messages import (
    Message,
    Presence,
    Reply,
    State,
    TaskMessage,
    decode,
    encode,
)

__all__ = ["sign", "signed_by", "verify"]

S = TypeVar("S", bound=State | TaskMessage | Reply | Presence)

PURPOSES: dict[type[Message], bytes] = {
    State: b"fededge state v1\n",
    TaskMessage: b"fededge task v1\n",
    Reply: b"fededge reply v1\n",
    Presence: b"fededge presence v1\n",
}
"""Stands before what is signed: a signature under something else cannot serve as one of these."""


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
