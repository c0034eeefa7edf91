"""Reports on the wire: alone, or followed by the only chunk of a small update."""

from __future__ import annotations

from fededge.errors import WireError
from fededge.wire.chunks import MAGIC
from fededge.wire.messages import MAX_OTHER_BYTES, Report, decode, encode

__all__ = ["join", "split"]

BEGINNING = b"\n" + MAGIC
"""A line feed and the beginning of a chunk; no JSON document contains these bytes."""


def join(report: Report, chunk: bytes) -> bytes:
    """One message of a report and the only chunk of its update."""
    return b"\n".join((encode(report), chunk))


def split(message: bytes) -> tuple[Report, memoryview]:
    """A report and its chunk, which is empty if the report came alone; WireError if invalid.

    The chunk is not checked yet: the receiver first decides whether it wants the update.
    """
    end = message.find(BEGINNING, 0, MAX_OTHER_BYTES + len(BEGINNING))
    if end < 0:
        return decode(message, Report), memoryview(b"")
    report = decode(message[:end], Report)
    if report.manifest.chunks != 1:
        raise WireError(
            f"a chunk came with the report of an update in {report.manifest.chunks} chunks; "
            "only the chunk of an update in one may"
        )
    return report, memoryview(message)[end + 1 :]
