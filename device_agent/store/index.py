"""Where the agent's store stands: an index of its files."""

from __future__ import annotations

from msgspec import Struct

from fededge.wire.messages import Report

__all__ = ["File", "Index", "Turn"]


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
    `trusted` is when the newest signed state was issued that the agent had believed by then.
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
    trusted: int = 0
