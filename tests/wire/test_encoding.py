"""Encodings of updates: decoded values, residues (error feedback), and refusals."""

from __future__ import annotations

import io
from typing import cast

import numpy as np
import pytest
import torch
import zstandard
from torch import nn

from fededge.errors import EgressError, WireError
from fededge.flat import Layout, Vector, as_numpy, blocks
from fededge.wire import tensors
from fededge.wire.encoding import Encoding, ZstdReader

LAYOUT = Layout.of(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
GENERATOR = torch.Generator().manual_seed(0)
BASE = as_numpy(torch.randn(LAYOUT.size, generator=GENERATOR))
MODEL = BASE + 0.01 * as_numpy(torch.randn(LAYOUT.size, generator=GENERATOR))

EVERY = [
    f"{numbers}{more}"
    for numbers in ("float32", "float16", "bfloat16", "int8")
    for more in ("", "+delta", "+zstd", "+delta+zstd")
    if numbers != "int8" or "delta" in more
]


def sent(encoding: str, residue: Vector | None = None) -> tuple[Vector, Vector]:
    """The decoded model and the residue."""
    way = Encoding.parse(encoding)
    payload, left = way.pack(LAYOUT, MODEL, BASE, residue)
    arrived = way.unpack(LAYOUT, payload, BASE)
    return arrived, np.zeros_like(BASE) if left is None else left


@pytest.mark.parametrize("text", EVERY)
def test_an_encoding_is_written_as_it_is_read(text: str) -> None:
    assert str(Encoding.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "float64",
        "int8",
        "int8+zstd",
        "float32+gzip",
        "float32+zstd+delta",
        "int4+delta",
        "+",
        "x" * 2000,
    ],
)
def test_another_encoding_is_refused_in_a_short_sentence(text: str) -> None:
    with pytest.raises(WireError, match="encoding") as caught:
        Encoding.parse(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["float32", "float32+zstd"])
def test_float32_arrives_bit_by_bit(text: str) -> None:
    arrived, left = sent(text)
    assert arrived.tobytes() == MODEL.tobytes()
    assert not left.any()


@pytest.mark.parametrize("text", EVERY)
def test_the_received_update_and_the_residue_add_up_to_the_update(text: str) -> None:
    """Up to the rounding of one float32 addition: nothing is lost for good."""
    arrived, left = sent(text)
    np.testing.assert_allclose(arrived + left, MODEL, rtol=0, atol=3e-7)


@pytest.mark.parametrize("text", [e for e in EVERY if not e.startswith("float32")])
def test_the_residue_goes_into_the_next_update(text: str) -> None:
    """Sent again and again, the sum of what arrives is the sum of what was sent, but for one
    residue; without feedback the error would grow with the number of updates.
    """
    way, residue, total = Encoding.parse(text), None, np.zeros(LAYOUT.size)
    for _ in range(50):
        payload, residue = way.pack(LAYOUT, MODEL, BASE, residue)
        total += way.unpack(LAYOUT, payload, BASE)
    assert residue is not None
    one = np.abs(sent(text)[0] - MODEL).max()
    assert one > 0
    assert np.abs(total - 50 * MODEL.astype(np.float64)).max() < 3 * one + 1e-5


def test_float16_is_numpys_and_saturates() -> None:
    model = MODEL.copy()
    model[0] = 1e9
    way = Encoding.parse("float16")
    payload, left = way.pack(LAYOUT, model, BASE)
    arrived = way.unpack(LAYOUT, payload, BASE)
    assert left is not None
    assert (arrived[0].item(), left[0].item()) == (65504.0, (model[0] - 65504.0).item())
    np.testing.assert_array_equal(arrived[1:], model[1:].astype(np.float16))


def test_int8_has_a_scale_for_each_tensor() -> None:
    """A tensor of large numbers takes no precision from one of small ones; zeros stay zeros."""
    change = np.zeros(LAYOUT.size, np.float32)
    big, small, empty = LAYOUT.entries[0], LAYOUT.entries[1], LAYOUT.entries[2]
    change[big.span] = np.linspace(-1000, 1000, big.size)
    change[small.span] = np.linspace(-0.001, 0.001, small.size)
    way = Encoding.parse("int8+delta")
    payload, _ = way.pack(LAYOUT, change, np.zeros_like(change))
    arrived = way.unpack(LAYOUT, payload, np.zeros_like(change))
    for entry in (big, small):
        step = np.abs(change[entry.span]).max() / 127
        error = np.abs(arrived[entry.span] - change[entry.span]).max()
        assert 0 < error <= 0.5001 * step
    assert not arrived[empty.span].any()
    assert len(payload) < 2 * LAYOUT.size + 100 * len(LAYOUT.entries)


def test_compression_makes_a_small_change_small() -> None:
    sparse = np.zeros(LAYOUT.size, np.float32)
    whole, _ = Encoding.parse("float32+delta").pack(LAYOUT, sparse, sparse)
    squeezed, _ = Encoding.parse("float32+delta+zstd").pack(LAYOUT, sparse, sparse)
    assert len(squeezed) < len(whole) / 2


@pytest.mark.parametrize("text", [e for e in EVERY if "zstd" not in e])
def test_a_part_of_an_update_is_that_of_the_whole(text: str) -> None:
    way = Encoding.parse(text)
    payload, _ = way.pack(LAYOUT, MODEL, BASE)
    whole = way.unpack(LAYOUT, payload, BASE)
    for first, last in (
        (0, LAYOUT.size),
        (0, 1),
        (29, 31),
        (3, 47),
        (LAYOUT.size - 1, LAYOUT.size),
    ):
        span = slice(first, last)
        part = way.unpack_part(LAYOUT, io.BytesIO(payload), span, BASE[span])
        assert np.array_equal(part, whole[span])


@pytest.mark.parametrize("text", EVERY)
def test_an_update_of_many_blocks_is_as_good_as_one(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, except for zstd's bytes; the residue is overwritten in place."""
    way, before = Encoding.parse(text), np.full_like(BASE, 1e-4)
    whole, left = way.pack(LAYOUT, MODEL, BASE, before.copy())
    monkeypatch.setattr(tensors, "blocks", lambda first, last: blocks(first, last, 7))
    file, residue = io.BytesIO(), before.copy()
    found = way.write_(residue, file, LAYOUT, MODEL, BASE)
    assert np.array_equal(
        way.unpack(LAYOUT, file.getvalue(), BASE), way.unpack(LAYOUT, whole, BASE)
    )
    if way.exact:
        assert (left, found) == (None, None)
        return
    assert left is not None
    assert found is not None
    assert found is residue
    assert np.array_equal(residue, left)
    assert not np.array_equal(residue, before)


def test_one_encoding_is_not_taken_for_another() -> None:
    for text in EVERY:
        payload, _ = Encoding.parse(text).pack(LAYOUT, MODEL, BASE)
        for other in EVERY:
            if other.replace("+delta", "") != text.replace("+delta", ""):
                with pytest.raises(WireError):
                    Encoding.parse(other).unpack(LAYOUT, payload, BASE)


def test_numbers_that_are_not_finite_do_not_leave_and_are_not_taken() -> None:
    bad = MODEL.copy()
    bad[3] = float("nan")
    with pytest.raises(EgressError, match="not finite"):
        Encoding.parse("int8+delta").pack(LAYOUT, bad, BASE)
    way = Encoding.parse("float32+delta")
    huge = np.full_like(BASE, 3e38)
    payload, _ = way.pack(LAYOUT, huge, np.zeros_like(huge))
    with pytest.raises(WireError, match="not finite"):
        way.unpack(LAYOUT, payload, huge)
    with pytest.raises(WireError, match="not finite"):
        way.unpack_part(LAYOUT, io.BytesIO(payload), slice(3, 9), huge[3:9])


@pytest.mark.parametrize("scale", ["inf", "-inf", "nan", "3e38", "-3e38"])
def test_a_scale_that_leads_out_of_all_numbers_is_refused_without_a_warning(scale: str) -> None:
    """A warning is an error here; 3e38 is finite, and its product overflows."""
    way = Encoding.parse("int8+delta")
    honest, _ = way.pack(LAYOUT, MODEL, BASE)
    first, _ = tensors.spans(honest)["#scales"]
    forged = honest[:first] + np.float32(scale).tobytes() + honest[first + 4 :]
    whole = slice(0, LAYOUT.size)
    with pytest.raises(WireError, match="not finite"):
        way.unpack(LAYOUT, forged, BASE)
    with pytest.raises(WireError, match="not finite"):
        way.unpack_part(LAYOUT, io.BytesIO(forged), whole, BASE)


@pytest.mark.parametrize("text", ["bfloat16", "bfloat16+delta"])
def test_numbers_that_bfloat16_rounds_to_infinity_are_refused_without_a_warning(text: str) -> None:
    """The largest float32 is nearer to bfloat16's infinity than to its largest number."""
    way, large = Encoding.parse(text), np.full_like(BASE, np.finfo(np.float32).max)
    payload, _ = way.pack(LAYOUT, large, np.zeros_like(BASE))
    with pytest.raises(WireError, match="not finite"):
        way.unpack(LAYOUT, payload, np.zeros_like(BASE))


def test_the_largest_change_is_packed_in_int8_without_a_warning() -> None:
    """127 steps of the scale may overflow float32: decoding then refuses the update."""
    way, zeros = Encoding.parse("int8+delta"), np.zeros_like(BASE)
    large = np.full_like(BASE, np.finfo(np.float32).max)
    payload, _ = way.pack(LAYOUT, large, zeros)
    with pytest.raises(WireError, match="not finite"):
        way.unpack(LAYOUT, payload, zeros)


def compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def decompress(payload: bytes, most: int) -> bytes:
    with Encoding(zstd=True).decompressed(payload, most) as file:
        return file.read(cast("ZstdReader", file).size)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = compress(bytes(200_000_000))
    assert len(bomb) < 20_000
    for payload in (
        bomb,
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)),
        compress(b"honest")[:-1],
        compress(b"honest") + b"more",
        compress(b"honest") + compress(bytes(10_000)),
        b"",
        b"\x28\xb5\x2f\xfd",
        b"PK\x03\x04",
    ):
        with pytest.raises(WireError):
            decompress(payload, 10_000)
    assert decompress(compress(b"honest"), 6) == b"honest"
    with pytest.raises(WireError, match="announces 6 bytes"):
        decompress(compress(b"honest"), 5)


def test_the_ledger_counts_compressed_bytes_as_a_whole() -> None:
    payload, _ = Encoding.parse("int8+delta+zstd").pack(LAYOUT, MODEL, BASE)
    assert tensors.spans(payload) == {"all, compressed": (0, len(payload))}
