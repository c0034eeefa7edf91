"""Small JSON files that contain their own SHA-256, so that damage is detected."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

__all__ = ["read_sealed", "sealed", "unsealed"]

T = TypeVar("T")


class Sealed(Struct, frozen=True):
    """JSON content with its checksum."""

    sha256: str
    content: msgspec.Raw


def sealed(content: object) -> bytes:
    """Encode as one line of JSON that `unsealed` reads."""
    raw = msgspec.json.encode(content)
    return msgspec.json.encode(Sealed(hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw)))


def unsealed(data: bytes, kind: type[T]) -> T | None:
    """Decode the content; None if the data is damaged or of another type."""
    try:
        found = msgspec.json.decode(data, type=Sealed)
        if hashlib.sha256(found.content).hexdigest() == found.sha256:
            return msgspec.json.decode(found.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return None


def read_sealed(path: Path, kind: type[T]) -> T | None:
    """Read the content of a file; None if the file is missing or damaged."""
    try:
        return unsealed(path.read_bytes(), kind)
    except OSError:
        return None
