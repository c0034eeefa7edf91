"""Updates on their way to the coordinator: which chunks have come, which are to be sent.

A device sends a report, and of the chunks those that it is asked for. So nothing is sent that is
not wanted, and nothing twice, whoever was restarted meanwhile. Devices share what may be in flight:
no more is asked for than the broker should hold, and more only as fast as the disk takes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from fededge.errors import WireError
from fededge.wire.chunks import STALLED, Assembly
from fededge.wire.messages import MAX_RESEND, Reply, Report
from fededge_server.machine.events import Command, KeepUpdateChunk, Note, SendReply, UpdateChunkCame

__all__ = ["Transfer", "share_of_flight"]

IN_FLIGHT = 12 * 1024 * 1024
"""Bytes of updates that all devices together may have on their way."""


def share_of_flight(chunk_bytes: int, senders: int) -> int:
    """The chunks that each of so many senders may have on their way; at least one."""
    return max(1, min(MAX_RESEND, IN_FLIGHT // (chunk_bytes * max(1, senders))))


@dataclass
class Transfer:
    """One update: its report, the chunks that have come, and those that are on their way."""

    report: Report
    assembly: Assembly
    coming: set[int] = field(default_factory=set)

    @classmethod
    def begun(cls, report: Report, now: float) -> Transfer:
        return cls(report, Assembly(report.manifest, now))

    @classmethod
    def resumed(cls, report: Report, have: frozenset[int], now: float) -> Transfer:
        """Go on after a restart; what the earlier process asked for may be on its way."""
        assembly = Assembly(report.manifest, now, have=set(have))
        share = share_of_flight(report.manifest.chunk_bytes, 1)
        return cls(report, assembly, {*islice(assembly.missing(), share)})

    @property
    def complete(self) -> bool:
        return self.assembly.complete

    def overdue(self, now: float) -> bool:
        return self.assembly.overdue(now)

    def renew(self) -> None:
        """The device has reported again: it listens, so chunks may be asked for again soon."""
        self.assembly.stalled = STALLED

    def take(self, event: UpdateChunkCame, now: float, share: int) -> list[Command]:
        """Take a chunk; ask for more once half of those that may be on their way have come."""
        try:
            piece = self.assembly.take(event.message, now)
        except WireError as error:
            return [Note(f"chunk dropped: {error}", event.device)]
        if piece is None:
            return []
        self.coming.discard(piece[0] // self.report.manifest.chunk_bytes)
        keep = KeepUpdateChunk(event.device, event.version, *piece)
        return [keep, *self._more(event.device, share)]

    def _more(self, device: str, share: int) -> list[Command]:
        """Ask for chunks that were not asked for yet, if there is room for them."""
        if 2 * len(self.coming) > share:
            return []
        left = (index for index in self.assembly.missing() if index not in self.coming)
        chunks = tuple(islice(left, share - len(self.coming)))
        self.coming.update(chunks)
        return [self._ask(device, chunks)] if chunks else []

    def request(self, device: str, share: int) -> SendReply:
        """Ask the device for what is missing, also for what was asked for before."""
        chunks = tuple(islice(self.assembly.missing(), share))
        self.coming = {*chunks}
        return self._ask(device, chunks)

    def _ask(self, device: str, chunks: tuple[int, ...]) -> SendReply:
        return SendReply(device, Reply("resend", self.report.version, chunks=chunks))
