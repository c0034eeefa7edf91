"""A payload in chunks: each says where it belongs and proves it; put together in any order."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from fededge.errors import StoreError, WireError
from fededge.wire.messages import Manifest
from fededge.wire.source import Source, piece, size

__all__ = [
    "CHUNK_BYTES",
    "HEADER",
    "STALLED",
    "Assembly",
    "Chunk",
    "Payload",
    "check_manifest",
    "count",
    "manifest",
    "pack",
    "unpack",
]

CHUNK_BYTES = 256 * 1024
STALLED = 5.0
"""Seconds without a chunk after which what is missing is asked for again; then twice that, …"""

MOST_PATIENCE = 80.0
"""… but not more. On a slow link every question delays the answer to the one before."""

MAGIC = b"FE1\n"
HEADER = struct.Struct("<4sI20s")  # magic, CRC-32 of all that follows, place
PLACE = struct.Struct("<III8s")  # index, count, length of the data, tag of the payload


@dataclass(frozen=True)
class Chunk:
    """A piece of a payload; `tag` is the beginning of the payload's SHA-256."""

    index: int
    count: int
    tag: bytes
    data: memoryview


@dataclass(frozen=True)
class Payload:
    """What is to be sent: bytes, or a file that is read chunk by chunk when they are sent.

    `checksums` has a CRC-32 for each chunk: a file that changes meanwhile is found out.
    """

    source: Source
    facts: Manifest
    checksums: tuple[int, ...]

    @classmethod
    def of(cls, source: Source, chunk_bytes: int = CHUNK_BYTES) -> Payload:
        """Read it once, in chunks."""
        length, digest, checksums = size(source), hashlib.sha256(), []
        for index in range(count(length, chunk_bytes)):
            data = piece(source, index * chunk_bytes, chunk_bytes)
            digest.update(data)
            checksums.append(zlib.crc32(data))
        facts = Manifest(len(checksums), chunk_bytes, length, digest.hexdigest())
        return cls(source, facts, tuple(checksums))

    def chunk(self, index: int) -> bytes:
        """One chunk, ready to send; a StoreError if the file is not what it was."""
        facts = self.facts
        data = piece(self.source, index * facts.chunk_bytes, facts.chunk_bytes)
        if zlib.crc32(data) != self.checksums[index]:
            raise StoreError(f"{self.source!s:.200}: damaged since it was made; start again")
        return _packed(data, facts, index)


def manifest(source: Source, chunk_bytes: int = CHUNK_BYTES) -> Manifest:
    """What the receiver needs to check the whole."""
    return Payload.of(source, chunk_bytes).facts


def pack(payload: bytes, facts: Manifest, index: int) -> bytes:
    """One chunk of the payload, ready to send."""
    return _packed(piece(payload, index * facts.chunk_bytes, facts.chunk_bytes), facts, index)


def _packed(data: bytes, facts: Manifest, index: int) -> bytes:
    place = PLACE.pack(index, facts.chunks, len(data), _tag(facts))
    return HEADER.pack(MAGIC, zlib.crc32(data, zlib.crc32(place)), place) + data


def check_manifest(facts: Manifest, most: int) -> None:
    """Refuse a transfer that contradicts itself, or takes more than `most` bytes."""
    if facts.bytes > most:
        raise WireError(f"{facts.bytes} bytes are more than the {most} that can be honest")
    if facts.chunks != count(facts.bytes, facts.chunk_bytes):
        raise WireError(
            f"{facts.chunks} chunks of {facts.chunk_bytes} bytes do not make {facts.bytes} bytes"
        )


def unpack(message: bytes) -> Chunk:
    """Read a chunk; anything torn or altered is a WireError."""
    if len(message) < HEADER.size:
        raise WireError(f"a chunk of {len(message)} bytes is shorter than its header")
    magic, checksum, place = HEADER.unpack_from(message)
    if magic != MAGIC:
        raise WireError("a chunk does not begin with its mark")
    index, count, length, tag = PLACE.unpack(place)
    data = memoryview(message)[HEADER.size :]
    if len(data) != length or zlib.crc32(data, zlib.crc32(place)) != checksum:
        raise WireError(f"chunk {index} is damaged: its length or checksum does not fit")
    return Chunk(index, count, tag, data)


@dataclass
class Assembly:
    """Which chunks of a transfer have come; where they are kept is the caller's business."""

    facts: Manifest
    touched: float
    patience: float = STALLED
    have: set[int] = field(default_factory=set)

    def take(self, message: bytes, now: float) -> tuple[int, bytes] | None:
        """A chunk's offset and data; None if it is a repetition. Any other is a WireError."""
        chunk = unpack(message)
        offset = self._offset(chunk)
        self.touched = now
        if chunk.index in self.have:
            return None
        self.have.add(chunk.index)
        return offset, bytes(chunk.data)

    def _offset(self, chunk: Chunk) -> int:
        facts = self.facts
        start = chunk.index * facts.chunk_bytes
        length = min(facts.chunk_bytes, facts.bytes - start)
        expected = (facts.chunks, length, _tag(facts))
        if chunk.index >= facts.chunks or (chunk.count, len(chunk.data), chunk.tag) != expected:
            raise WireError(
                f"chunk {chunk.index} of {chunk.count} with {len(chunk.data)} bytes is of another "
                f"transfer: expected are {facts.chunks} chunks of {facts.bytes} bytes, "
                f"SHA-256 {facts.sha256[:16]}…"
            )
        return start

    @property
    def complete(self) -> bool:
        return len(self.have) == self.facts.chunks

    def missing(self) -> Iterator[int]:
        return (index for index in range(self.facts.chunks) if index not in self.have)

    def overdue(self, now: float) -> bool:
        """Whether nothing has come for a while; if so, the next while is twice as long."""
        if self.complete or now - self.touched < self.patience:
            return False
        self.touched, self.patience = now, min(2 * self.patience, MOST_PATIENCE)
        return True


def count(size: int, chunk_bytes: int) -> int:
    """How many chunks so many bytes make."""
    return max(1, -(-size // chunk_bytes))


def _tag(facts: Manifest) -> bytes:
    return bytes.fromhex(facts.sha256[:16])
