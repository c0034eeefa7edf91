"""Payloads in chunks: each has an index and a checksum, and they may arrive in any order."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fededge.errors import StoreError, WireError
from fededge.wire.checksums import joined
from fededge.wire.messages import Manifest
from fededge.wire.source import Source, piece, size

__all__ = [
    "CHUNK_BYTES",
    "HEADER",
    "MAGIC",
    "STALLED",
    "Assembly",
    "Chunk",
    "Payload",
    "check_manifest",
    "count",
    "manifest",
    "pack",
    "unpack",
    "whole",
]

CHUNK_BYTES = 256 * 1024
STALLED = 5.0
"""Seconds without a chunk before the missing ones are requested again. Doubled each time, …"""

MAX_STALLED = 80.0
"""… up to this: on a slow link every request delays the answer to the one before."""

MAGIC = b"FE1\n"
HEADER = struct.Struct("<4sI20s")  # magic, CRC-32 of place and data, place
PLACE = struct.Struct("<III8s")  # index, count, length of the data, tag of the payload


@dataclass(frozen=True)
class Chunk:
    """One chunk of a payload, and the CRC-32 of its data.

    `tag` is the first 8 bytes of the payload's SHA-256.
    """

    index: int
    count: int
    tag: bytes
    data: memoryview
    checksum: int


@dataclass(frozen=True)
class Payload:
    """Data to send: bytes, or a file that is read chunk by chunk while it is sent.

    `checksums` has a CRC-32 for each chunk, to detect a file that has changed since.
    """

    source: Source
    facts: Manifest
    checksums: tuple[int, ...]

    @classmethod
    def of(cls, source: Source, chunk_bytes: int = CHUNK_BYTES) -> Payload:
        """Read the source once, chunk by chunk, and compute its manifest and checksums."""
        length, digest, checksums = size(source), hashlib.sha256(), []
        for index in range(count(length, chunk_bytes)):
            data = piece(source, index * chunk_bytes, chunk_bytes)
            digest.update(data)
            checksums.append(zlib.crc32(data))
        facts = Manifest(len(checksums), chunk_bytes, length, digest.hexdigest())
        return cls(source, facts, tuple(checksums))

    @classmethod
    def written(
        cls, source: Source, chunk_bytes: int, size: int, sha256: str, checksums: Sequence[int]
    ) -> Payload:
        """A payload that need not be read: all was computed while it was written."""
        facts = Manifest(len(checksums), chunk_bytes, size, sha256)
        return cls(source, facts, tuple(checksums))

    def chunk(self, index: int) -> bytes:
        """One chunk, ready to send; StoreError if the file has changed."""
        facts, checksum = self.facts, self.checksums[index]
        data = piece(self.source, index * facts.chunk_bytes, facts.chunk_bytes)
        if zlib.crc32(data) != checksum:
            raise StoreError(
                f"{self.source!s:.200}: the file has changed since it was written; start again"
            )
        return _packed(data, checksum, facts, index)


def manifest(source: Source, chunk_bytes: int = CHUNK_BYTES) -> Manifest:
    """The manifest by which the receiver checks the payload."""
    return Payload.of(source, chunk_bytes).facts


def pack(payload: bytes, facts: Manifest, index: int) -> bytes:
    """One chunk of the payload, ready to send."""
    data = piece(payload, index * facts.chunk_bytes, facts.chunk_bytes)
    return _packed(data, zlib.crc32(data), facts, index)


def _packed(data: bytes, checksum: int, facts: Manifest, index: int) -> bytes:
    place = PLACE.pack(index, facts.chunks, len(data), _tag(facts))
    of_both = joined(zlib.crc32(place), checksum, len(data))
    return b"".join((HEADER.pack(MAGIC, of_both, place), data))


def check_manifest(facts: Manifest, most: int) -> None:
    """Refuse a manifest that contradicts itself, or that announces more than `most` bytes."""
    if facts.bytes > most:
        raise WireError(f"the manifest announces {facts.bytes} bytes, the limit is {most}")
    if facts.chunks != count(facts.bytes, facts.chunk_bytes):
        raise WireError(
            f"{facts.chunks} chunks of {facts.chunk_bytes} bytes do not make {facts.bytes} bytes"
        )


def unpack(message: bytes | memoryview) -> Chunk:
    """Parse a chunk; WireError if it is cut off or damaged."""
    if len(message) < HEADER.size:
        raise WireError(f"a chunk of {len(message)} bytes is shorter than its header")
    magic, checksum, place = HEADER.unpack_from(message)
    if magic != MAGIC:
        raise WireError("a chunk does not begin with its magic bytes")
    index, count, length, tag = PLACE.unpack(place)
    data = memoryview(message)[HEADER.size :]
    own = zlib.crc32(data)
    if len(data) != length or joined(zlib.crc32(place), own, length) != checksum:
        raise WireError(f"chunk {index} is damaged: wrong length or checksum")
    return Chunk(index, count, tag, data, own)


@dataclass
class Assembly:
    """The chunks of a transfer that have arrived; the caller stores their data."""

    facts: Manifest
    touched: float
    stalled: float = STALLED
    have: set[int] = field(default_factory=set)

    def take(self, message: bytes, now: float) -> tuple[int, memoryview, int] | None:
        """Return a new chunk's offset, data and CRC-32; None for a duplicate.

        Raises:
            WireError: it is damaged, or another payload's.
        """
        chunk = unpack(message)
        offset = _offset(chunk, self.facts)
        self.touched = now
        if chunk.index in self.have:
            return None
        self.have.add(chunk.index)
        return offset, chunk.data, chunk.checksum

    @property
    def complete(self) -> bool:
        return len(self.have) == self.facts.chunks

    def missing(self) -> Iterator[int]:
        return (index for index in range(self.facts.chunks) if index not in self.have)

    def overdue(self, now: float) -> bool:
        """Return True if the transfer has stalled; then the next timeout is twice as long."""
        if self.complete or now - self.touched < self.stalled:
            return False
        self.touched, self.stalled = now, min(2 * self.stalled, MAX_STALLED)
        return True


def whole(message: memoryview, facts: Manifest) -> memoryview:
    """The data of a payload's only chunk; WireError if it is damaged or another payload's."""
    chunk = unpack(message)
    _offset(chunk, facts)
    return chunk.data


def _offset(chunk: Chunk, facts: Manifest) -> int:
    """The offset of a chunk's data; WireError if it is another payload's."""
    start = chunk.index * facts.chunk_bytes
    length = min(facts.chunk_bytes, facts.bytes - start)
    expected = (facts.chunks, length, _tag(facts))
    if chunk.index >= facts.chunks or (chunk.count, len(chunk.data), chunk.tag) != expected:
        raise WireError(
            f"chunk {chunk.index} of {chunk.count} with {len(chunk.data)} bytes belongs to "
            f"another transfer: expected {facts.chunks} chunks of {facts.bytes} bytes, "
            f"SHA-256 {facts.sha256[:16]}…"
        )
    return start


def count(size: int, chunk_bytes: int) -> int:
    """The number of chunks that `size` bytes make."""
    return max(1, -(-size // chunk_bytes))


def _tag(facts: Manifest) -> bytes:
    return bytes.fromhex(facts.sha256[:16])
