"""CRC-32 of bytes in parts: that of the whole follows from those of the parts, without reading.

A CRC is the remainder of a polynomial over bits; to append n bytes multiplies it by x to the 8n.
zlib has this as `crc32_combine`, Python has not.
"""

from __future__ import annotations

import functools

__all__ = ["joined"]

POLYNOMIAL = 0xEDB88320
ONE = 1 << 31
"""The polynomial 1: the highest bit is the coefficient of x to the 0."""


def joined(first: int, second: int, length: int) -> int:
    """The CRC-32 of two parts one after the other, from theirs; `length`: of the second part."""
    return _product(_shift(length), first) ^ second


@functools.lru_cache(maxsize=64)
def _shift(length: int) -> int:
    """x to the 8 * `length`, modulo the polynomial."""
    power, base = ONE, ONE >> 8  # x to the 8
    while length:
        if length & 1:
            power = _product(power, base)
        base, length = _product(base, base), length >> 1
    return power


def _product(a: int, b: int) -> int:
    """The product of two polynomials, modulo the polynomial of CRC-32."""
    found = 0
    while a:
        if a & ONE:
            found ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (POLYNOMIAL if b & 1 else 0)
    return found
