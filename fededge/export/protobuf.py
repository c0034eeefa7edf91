"""Encoder of the protobuf fields around a model's weights: filling a template is one join."""

from __future__ import annotations

__all__ = ["header", "integer", "message"]


def varint(value: int) -> bytes:
    """Encode an integer: seven bits per byte, lowest first; the eighth bit: more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """Encode an integer field."""
    return varint(field << 3) + varint(value)


def header(field: int, length: int) -> bytes:
    """Encode the header of a string, raw bytes or a nested message of `length` bytes."""
    return varint(field << 3 | 2) + varint(length)


def message(field: int, payload: bytes) -> bytes:
    """Encode a string, raw bytes or a nested message."""
    return header(field, len(payload)) + payload
