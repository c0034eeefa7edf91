"""The few bytes of protobuf around a model's weights, so that filling a template is one join."""

from __future__ import annotations

__all__ = ["message", "number", "opening"]


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An integer field."""
    return varint(field << 3) + varint(value)


def opening(field: int, length: int) -> bytes:
    """What stands before the `length` bytes of a string, of raw bytes or of a nested message."""
    return varint(field << 3 | 2) + varint(length)


def message(field: int, payload: bytes) -> bytes:
    """A string, raw bytes or a nested message."""
    return opening(field, len(payload)) + payload
