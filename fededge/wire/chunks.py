"""A payload in chunks: each with its index, count, length and checksum; put together in any order."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fededge.errors import WireError
from fededge.wire.messages import Manifest

__all__ = ["CHUNK_BYTES", "Assembly", "Chunk", "manifest", "pack", "unpack"]

CHUNK_BYTES = 256 * 1024
HEADER = struct.Struct("<4sIIII")  # magic, index, count, length, CRC-32 of the data
MAGIC = b"FE1\n"


class Chunk(NamedTuple):
    index: int
    count: int
    data: memoryview


def manifest(payload: bytes, chunk_bytes: int = CHUNK_BYTES) -> Manifest:
    """What the receiver needs to check the whole."""
    count = max(1, -(-len(payload) // chunk_bytes))
    return Manifest(count, chunk_bytes, len(payload), hashlib.sha256(payload).hexdigest())


def pack(payload: bytes, facts: Manifest, index: int) -> bytes:
    """One chunk of the payload, ready to send."""
    start = index * facts.chunk_bytes
    data = memoryview(payload)[start : start + facts.chunk_bytes]
    return HEADER.pack(MAGIC, index, facts.chunks, len(data), zlib.crc32(data)) + data


def unpack(message: bytes) -> Chunk:
    """Read a chunk; anything torn, altered or foreign is a WireError."""
    if len(message) < HEADER.size:
        raise WireError(f"a chunk of {len(message)} bytes is shorter than its header")
    magic, index, count, length, checksum = HEADER.unpack_from(message)
    data = memoryview(message)[HEADER.size :]
    if magic != MAGIC:
        raise WireError("a chunk does not begin with its mark")
    if len(data) != length or zlib.crc32(data) != checksum:
        raise WireError(f"chunk {index} is damaged: its length or checksum does not fit")
    if index >= count:
        raise WireError(f"chunk {index} of {count} cannot be")
    return Chunk(index, count, data)


@dataclass
class Assembly:
    """Which chunks of a transfer have come; where they are kept is the caller's business."""

    facts: Manifest
    have: set[int] = field(default_factory=set)

    def offset(self, chunk: Chunk) -> int | None:
        """Where a chunk belongs; None if it is a repetition. One that does not fit is an error."""
        facts = self.facts
        start = chunk.index * facts.chunk_bytes
        length = min(facts.chunk_bytes, facts.bytes - start)
        if chunk.count != facts.chunks or len(chunk.data) != length:
            raise WireError(
                f"chunk {chunk.index} of {chunk.count} with {len(chunk.data)} bytes does not "
                f"belong to a transfer of {facts.chunks} chunks and {facts.bytes} bytes"
            )
        return None if chunk.index in self.have else start

    @property
    def complete(self) -> bool:
        return len(self.have) == self.facts.chunks

    def missing(self) -> Iterator[int]:
        return (index for index in range(self.facts.chunks) if index not in self.have)
