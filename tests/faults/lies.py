"""Values for the messages of hostile devices: extreme, stale, foreign and random."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from fededge.flat import Layout, Vector
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Message
from fededge.wire.tensors import MODEL

__all__ = ["NUMBERS", "POISONS", "garbage", "mangled", "poisoned", "tampered", "update_of"]

NUMBERS: tuple[float, ...] = (
    *(0, 1, -1, 0.5, 2, 10, 11, -10, 1e-300, 1e9, 1e15, -1e15, 1e300, -1e300),
    *(2**31, 2**53, 2**53 + 2, -(2**53), 2**63, 2**64, 1.7976931348623157e308),
)
TEXTS = (
    *("", " ", "x", "../../state", "null", "\x00", "\u202eabc", "é" * 3000, "device-0", "device-1"),
    *("000000-0000000000000000", "999999-ffffffffffffffff", "0" * 32, "0" * 64, "f" * 64),
)
OTHERS: tuple[Any, ...] = (None, True, [], {}, [[]], {"examples": 1}, [0] * 2000)
TOKENS = (b"NaN", b"-Infinity", b"1e999", b"1" * 400, b'"\\ud800"', b"[" * 2000, b"-0", b"{}{}")
"""JSON that no encoder writes."""

MARK = "\x7fhere\x7f"

Draws = np.random.Generator


def _noise(w: Vector, draws: Draws) -> Vector:
    noise: Vector = draws.normal(size=w.shape).astype(np.float32)
    return noise


def _one_number(w: Vector, draws: Draws) -> Vector:
    model: Vector = w.copy()
    model[draws.integers(len(w))] = draws.choice([65504.0, -65504.0, 65505.0, 1e30, np.nan, np.inf])
    return model


POISONS: tuple[Callable[[Vector, Draws], Vector], ...] = (
    lambda w, draws: 0.9 * w + 0.1 * _noise(w, draws),  # as an honest device does
    lambda w, draws: w,
    lambda w, draws: w + 1e-9 * _noise(w, draws),
    lambda w, draws: w + 1e-3 * _noise(w, draws),
    lambda w, draws: -w,
    lambda w, draws: np.zeros_like(w),
    lambda w, draws: w + 2 * _noise(w, draws),
    lambda w, draws: w + 1e3 * _noise(w, draws),
    lambda w, draws: np.full_like(w, draws.choice([65504.0, -65504.0, 65505.0])),
    lambda w, draws: np.full_like(w, draws.choice([1e6, -1e9, 1e14])),
    lambda w, draws: np.full_like(w, draws.choice([1e30, 3.4e38, -3.4028235e38])),
    lambda w, draws: np.full_like(w, draws.choice([np.nan, np.inf])),
    _one_number,
)


def poisoned(w: Vector, rng: random.Random, which: int | None = None) -> Vector:
    """A poisoned model of the same size; `which` chooses the poison."""
    poison = rng.choice(POISONS) if which is None else POISONS[which]
    return poison(w, np.random.default_rng(rng.getrandbits(32)))


@np.errstate(all="ignore")
def update_of(model: Vector, base: Vector, layout: Layout, encoding: Encoding) -> bytes:
    """The bytes of an update as an honest device packs it, without its checks and its residue."""
    file = io.BytesIO()
    sent = model - base if encoding.delta else model
    encoding.send(file, layout, {MODEL: sent.astype(np.float32)}, encoding.numbers)
    return file.getvalue()


def garbage(rng: random.Random) -> bytes:
    """Random bytes, or bytes that resemble a message."""
    drawn = rng.randbytes(rng.choice((1, 10, 200, 5000)))
    return rng.choice((drawn, b"", b"{", b"null", b"{}", b"[]", b'{"device": 1}', *TOKENS))


def mangled(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some changed, inserted or removed."""
    at = rng.randrange(len(data) + 1)
    length = rng.choice((0, 1, 8, len(data)))
    return data[:at] + rng.randbytes(rng.choice((0, 1, length))) + data[at + length :]


def tampered(message: Message, known: Sequence[object], rng: random.Random) -> bytes:
    """A message with some fields changed, removed or added.

    Args:
        known: further values: stale and foreign ones.
    """
    fields: Any = msgspec.to_builtins(message)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place, key = rng.choice([*_places(fields)] or [(fields, "device")])
        match rng.randrange(8):
            case 0:
                place.pop(key, None)
            case 1:
                place[rng.choice(TEXTS)] = rng.choice(NUMBERS)
            case 2:
                place[key] = MARK
            case _:
                kind = rng.choice((NUMBERS, NUMBERS, TEXTS, OTHERS, known or TEXTS))
                place[key] = rng.choice(kind)
    data = msgspec.json.encode(fields, enc_hook=str)
    return data.replace(msgspec.json.encode(MARK), rng.choice(TOKENS))


def _places(fields: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every field, also those within another one."""
    for key, value in fields.items():
        yield fields, key
        if isinstance(value, dict):
            yield from _places(value)
