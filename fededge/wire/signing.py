"""Ed25519 signatures of the coordinator's messages, which agents check against trusted keys.

Messages are signed whole. Each kind is signed with its own prefix, so that a signature of one kind
is not valid for another. Each message names its federation or run, and its device. A state's
`issued` grows, so that agents detect a replayed old state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

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

if TYPE_CHECKING:  # 7 MB that only a service with keys needs
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

__all__ = ["sign", "signed_by", "verify"]

S = TypeVar("S", bound=State | TaskMessage | Reply | Presence)

PURPOSES: dict[type[Message], bytes] = {
    State: b"fededge state v1\n",
    TaskMessage: b"fededge task v1\n",
    Reply: b"fededge reply v1\n",
    Presence: b"fededge presence v1\n",
}
"""Prefix of the signed bytes, by kind of message (domain separation)."""


def sign(message: S, key: Ed25519PrivateKey) -> S:
    return msgspec.structs.replace(message, signature=key.sign(_signed(message)).hex())


def verify(message: S, keys: tuple[Ed25519PublicKey, ...]) -> None:
    """Raise WireError unless one of the keys signed this message."""
    if not message.signature:
        raise WireError("the message is not signed; this device accepts signed messages only")
    if not signed_by(message, keys):
        raise WireError("the message is not signed by a key that this device trusts")


def signed_by(message: S, keys: tuple[Ed25519PublicKey, ...]) -> bool:
    signature, data = bytes.fromhex(message.signature), _signed(message)
    return any(_is_valid(key, signature, data) for key in keys)


def _is_valid(key: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _signed(message: S) -> bytes:
    """The bytes that are signed; decoded once before, so that both sides format numbers alike."""
    kind = type(message)
    bare = msgspec.structs.replace(message, signature="")
    return PURPOSES[kind] + encode(decode(encode(bare), kind))
