"""Chunks: assembly in any order, duplicates, and refusal of damaged or foreign ones."""

from __future__ import annotations

import hashlib
import random
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fededge.errors import StoreError, WireError
from fededge.storage.files import replacing
from fededge.storage.pieces import Digests, check_whole, write_piece
from fededge.storage.source import FileSource
from fededge.wire import chunks
from fededge.wire.checksums import joined
from fededge.wire.chunks import HEADER, MAX_STALLED, STALLED, Assembly, Payload, check_manifest
from fededge.wire.messages import Manifest, decode, encode

SIZES = [0, 1, 1023, 1024, 1025, 2048, 5000]


def some_bytes(size: int, text: str = "") -> bytes:
    return hashlib.shake_128(f"{size}{text}".encode()).digest(size)


@settings(deadline=None)
@given(st.integers(0, 9000), st.integers(1024, 3000), st.randoms(use_true_random=False))
def test_chunks_in_any_order_and_again_make_the_whole(
    size: int, chunk_bytes: int, rng: random.Random
) -> None:
    payload = some_bytes(size)
    facts = chunks.manifest(payload, chunk_bytes)
    assert decode(encode(facts), Manifest) == facts
    check_manifest(facts, size)
    messages = [chunks.pack(payload, facts, index) for index in range(facts.chunks)]
    coming = messages + rng.choices(messages, k=5)
    rng.shuffle(coming)
    assembly = Assembly(facts, 0.0)
    out = bytearray(size)
    for message in coming:
        piece = assembly.take(message, 0.0)
        if piece is not None:
            offset, data, checksum = piece
            assert checksum == zlib.crc32(data)
            out[offset : offset + len(data)] = data
    assert assembly.complete
    assert list(assembly.missing()) == []
    assert bytes(out) == payload


@pytest.mark.parametrize("size", SIZES)
def test_there_is_always_a_chunk_and_an_exact_multiple_has_no_empty_one(size: int) -> None:
    payload = some_bytes(size)
    facts = chunks.manifest(payload, 1024)
    assert facts.chunks == max(1, -(-size // 1024))
    lengths = [len(chunks.pack(payload, facts, i)) - HEADER.size for i in range(facts.chunks)]
    assert sum(lengths) == size
    assert size == 0 or min(lengths) > 0


def test_a_chunk_is_laid_out_as_the_protocol_says() -> None:
    """28 bytes of header, little-endian, then the data; built by hand."""
    payload = some_bytes(2500)
    facts = chunks.manifest(payload, 1024)
    data = payload[2048:]
    place = struct.pack("<III", 2, 3, 452) + hashlib.sha256(payload).digest()[:8]
    expected = b"FE1\n" + struct.pack("<I", zlib.crc32(place + data)) + place + data
    assert chunks.pack(payload, facts, 2) == expected
    assert HEADER.size == 28


def test_no_bit_of_a_chunk_can_change_unnoticed() -> None:
    payload = some_bytes(1100)
    facts = chunks.manifest(payload, 1024)
    message = chunks.pack(payload, facts, 1)
    for place in range(len(message)):
        for bit in range(8):
            altered = bytearray(message)
            altered[place] ^= 1 << bit
            with pytest.raises(WireError):
                Assembly(facts, 0.0).take(bytes(altered), 0.0)


def test_a_torn_or_extended_chunk_is_refused() -> None:
    payload = some_bytes(1100)
    facts = chunks.manifest(payload, 1024)
    message = chunks.pack(payload, facts, 0)
    for torn in (*(message[:end] for end in range(len(message))), message + b"\0"):
        with pytest.raises(WireError):
            chunks.unpack(torn)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_a_chunk_or_a_wire_error(data: bytes) -> None:
    facts = chunks.manifest(some_bytes(2500), 1024)
    for message in (data, b"FE1\n" + data):
        with pytest.raises(WireError):
            Assembly(facts, 0.0).take(message, 0.0)


def test_a_chunk_of_another_payload_of_the_same_size_is_refused() -> None:
    ours, theirs = some_bytes(2500), some_bytes(2500, "other")
    message = chunks.pack(theirs, chunks.manifest(theirs, 1024), 1)
    with pytest.raises(WireError, match="another transfer"):
        Assembly(chunks.manifest(ours, 1024), 0.0).take(message, 0.0)


@pytest.mark.parametrize(
    "change", [{"chunks": 4}, {"chunk_bytes": 2048}, {"bytes": 2499}, {"bytes": 2**53}]
)
def test_a_chunk_that_its_manifest_does_not_foresee_is_refused(change: dict[str, int]) -> None:
    payload = some_bytes(2500)
    facts = chunks.manifest(payload, 1024)
    message = chunks.pack(payload, facts, 2)
    with pytest.raises(WireError):
        Assembly(msgspec.structs.replace(facts, **change), 0.0).take(message, 0.0)


def test_an_index_past_the_end_is_refused() -> None:
    payload = some_bytes(2500)
    facts = chunks.manifest(payload, 1024)
    far = chunks.pack(payload, facts, 3)
    with pytest.raises(WireError):
        Assembly(facts, 0.0).take(far, 0.0)


@pytest.mark.parametrize(
    "facts",
    [
        Manifest(2, 1024, 1024, "0" * 64),
        Manifest(1, 1024, 1025, "0" * 64),
        Manifest(2, 1024, 0, "0" * 64),
        Manifest(5, 1024, 5001, "0" * 64),
    ],
)
def test_a_manifest_that_contradicts_itself_or_is_too_large_is_refused(facts: Manifest) -> None:
    with pytest.raises(WireError):
        check_manifest(facts, 5000)


def test_the_wait_grows_to_a_limit_and_any_chunk_restarts_it() -> None:
    payload = some_bytes(2500)
    facts = chunks.manifest(payload, 1024)
    assembly = Assembly(facts, 0.0)
    asked = [second for second in range(1000) if assembly.overdue(float(second))]
    waits = [b - a for a, b in zip([0, *asked], asked, strict=False)]
    assert waits[:5] == [STALLED, 10, 20, 40, 80]
    assert set(waits[5:]) == {MAX_STALLED}
    assembly.take(chunks.pack(payload, facts, 0), 1000.0)
    assert not assembly.overdue(1000.0 + MAX_STALLED - 1)


# Where they land


@pytest.mark.parametrize("size", SIZES)
def test_pieces_written_in_any_order_are_read_back_whole(tmp_path: Path, size: int) -> None:
    payload = some_bytes(size)
    facts = chunks.manifest(payload, 1024)
    path = tmp_path / "file"
    for index in reversed(range(facts.chunks)):
        write_piece(path, index * 1024, payload[index * 1024 :][:1024])
    check_whole(path, facts)
    assert path.read_bytes() == payload
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path) -> None:
    payload = some_bytes(2500)
    facts = chunks.manifest(payload, 1024)
    path = tmp_path / "file"
    with pytest.raises(WireError):
        check_whole(path, facts)
    for data in (b"", payload[:-1], payload + b"\0", bytes(2500)):
        path.write_bytes(data)
        with pytest.raises(WireError):
            check_whole(path, facts)


def test_a_huge_manifest_does_not_make_a_huge_buffer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"small")
    with pytest.raises(WireError):
        check_whole(path, Manifest(1_000_000, 1024, 2**53, "0" * 64))


def test_a_place_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        write_piece(tmp_path / "missing" / "file", 0, b"data")


@pytest.mark.parametrize("length", [0, 1, 7, 1024, 262_144])
def test_a_checksum_of_two_parts_follows_from_theirs(length: int) -> None:
    first, second = some_bytes(20), some_bytes(length)
    both = joined(zlib.crc32(first), zlib.crc32(second), length)
    assert both == zlib.crc32(first + second)


def test_a_file_knows_the_checksums_of_its_chunks_when_it_is_written(tmp_path: Path) -> None:
    """However the bytes are cut when they are written."""
    data, path = some_bytes(2500), tmp_path / "file"
    with replacing(path, chunk_bytes=1024) as file:
        for start in range(0, len(data), 300):
            file.write(data[start : start + 300])
    source = FileSource(path)
    payload = Payload.written(source, 1024, file.size, file.sha256, file.checksums)
    assert payload == Payload.of(source, 1024)


def test_a_digest_counts_only_pieces_that_came_in_order(tmp_path: Path) -> None:
    path, data = tmp_path / "file", some_bytes(2500)
    facts, digests = chunks.manifest(data, 1024), Digests()
    for offsets, known in (
        ((0, 1024, 2048), True),
        ((1024, 0, 2048), False),
        ((0, 0, 1024), False),
    ):
        for offset in offsets:
            digests.add(path, offset, data[offset:][:1024])
        assert digests.take(path, facts.bytes) == (facts.sha256 if known else "")
    for offset in (0, 1024, 2048):  # one that broke off does not spoil the next
        digests.add(path, offset, data[offset:][:1024])
    assert digests.take(path, facts.bytes) == facts.sha256
