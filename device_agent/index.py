"""Where the agent's store stands: an index of its files, sealed with its own checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from msgspec import Struct

from fededge.wire.messages import Report

__all__ = ["File", "Index", "Turn", "sealed", "unsealed"]


class File(Struct, frozen=True):
    """A file of ours, by name and content."""

    name: str
    sha256: str


class Turn(Struct, frozen=True):
    """A turn: its report, its update, and the private state that follows its acceptance."""

    report: Report
    update: File
    private: File


class Index(Struct, frozen=True):
    """What lies where. `turn` awaits the coordinator's word; `settled` was accepted, `late` not.

    Of the late one the files are gone: what is left says which turn not to take again.
    `earlier` is the private state before the present one: from there the turn can be taken again.
    """

    instance: str
    held: str = ""
    held_sha256: str = ""
    run: str = ""
    private: File | None = None
    earlier: File | None = None
    turn: Turn | None = None
    settled: Turn | None = None
    late: Turn | None = None
    count: int = 0


class Sealed(Struct, frozen=True):
    """An index with its checksum."""

    sha256: str
    index: msgspec.Raw


def sealed(index: Index) -> bytes:
    raw = msgspec.json.encode(index)
    return msgspec.json.encode(Sealed(hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw)))


def unsealed(path: Path) -> Index | None:
    """The index in a file; None if it is not there or not what was written."""
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=Sealed)
        if hashlib.sha256(sealed.index).hexdigest() == sealed.sha256:
            return msgspec.json.decode(sealed.index, type=Index)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return None
