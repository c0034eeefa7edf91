"""The index of the agent's store: one small file that names all others."""

from __future__ import annotations

from msgspec import Struct

from fededge.wire.messages import Report

__all__ = ["FORMAT", "Index", "IndexFormat", "SavedTurn", "StoredFile", "TrainedTurn"]


FORMAT = 1
"""The format of the agent's folder; version 0.1.0 did not write it down."""


class StoredFile(Struct, frozen=True):
    """A file of the store: its name and the SHA-256 of its content."""

    name: str
    sha256: str


class SavedTurn(Struct, frozen=True):
    """A turn on disk; `private` becomes the private state if the update is accepted."""

    report: Report
    update: StoredFile
    private: StoredFile


class TrainedTurn(Struct, frozen=True):
    """A turn whose files are written, and which the index does not name yet.

    `private` follows the training, accepted or not; `accepted` follows the update. `renewed`: the
    round as old as the method's own state in them. `checksums` are those of the update's chunks,
    if they are known.
    """

    report: Report
    update: StoredFile
    private: StoredFile
    accepted: StoredFile
    renewed: int = 0
    checksums: tuple[int, ...] = ()


class Index(Struct, frozen=True, rename={"last_accepted": "settled", "missed": "late"}):
    """The state of the store.

    `turn` awaits the coordinator's answer, `last_accepted` was accepted, `missed` came too late.
    The files of `missed` are gone: it names the turn that is not taken again.
    `earlier` is the private state before the current one: a damaged turn starts again from there.
    `renewed` and `earlier_renewed` say since which round the method's own state in them has grown.
    `trusted` is the issue number of the newest signed state that the agent has believed.
    `ledger` has at least the bytes that have left by field; empty if the ledger's own file counts.
    `serial` grows with every change.
    `format` grows when an older version of FedEdge could not go on from it.
    """

    instance: str
    held: str = ""
    held_sha256: str = ""
    run: str = ""
    private: StoredFile | None = None
    earlier: StoredFile | None = None
    renewed: int = 0
    earlier_renewed: int = 0
    turn: SavedTurn | None = None
    last_accepted: SavedTurn | None = None
    missed: SavedTurn | None = None
    count: int = 0
    trusted: int = 0
    ledger: dict[str, int] = {}
    serial: int = 0
    format: int = FORMAT


class IndexFormat(Struct, frozen=True):
    """The part of an index that every version of FedEdge can read."""

    format: int = 1
