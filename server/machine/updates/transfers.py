"""Updates on their way to the coordinator: which chunks have come, which are to be sent.

A device sends a report, and of the chunks those that it is asked for. So nothing is sent that is
not wanted, and nothing twice, whoever was restarted meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from fededge.errors import WireError
from fededge.wire.chunks import STALLED, Assembly
from fededge.wire.messages import MAX_RESEND, Reply, Report
from fededge_server.machine.events import Command, KeepUpdateChunk, Note, SendReply, UpdateChunkCame

__all__ = ["Transfer"]


@dataclass
class Transfer:
    """One update: its report, the chunks that have come, and those that were asked for."""

    report: Report
    assembly: Assembly
    asked: frozenset[int] = frozenset()

    @classmethod
    def begun(cls, report: Report, now: float) -> Transfer:
        return cls(report, Assembly(report.manifest, now))

    @classmethod
    def resumed(cls, report: Report, have: frozenset[int], now: float) -> Transfer:
        """Go on after a restart; what the earlier process asked for may be on its way."""
        assembly = Assembly(report.manifest, now, have=set(have))
        return cls(report, assembly, frozenset(assembly.missing()))

    @property
    def complete(self) -> bool:
        return self.assembly.complete

    def overdue(self, now: float) -> bool:
        return self.assembly.overdue(now)

    def renew(self) -> None:
        """The device has reported again: it listens, so chunks may be asked for again soon."""
        self.assembly.stalled = STALLED

    def take(self, event: UpdateChunkCame, now: float) -> list[Command]:
        """Take a chunk; ask for more once all that were asked for have come."""
        try:
            piece = self.assembly.take(event.message, now)
        except WireError as error:
            return [Note(f"chunk dropped: {error}", event.device)]
        if piece is None:
            return []
        keep = KeepUpdateChunk(event.device, event.version, *piece)
        more = not self.complete and self.assembly.have.issuperset(self.asked)
        return [keep, self.request(event.device)] if more else [keep]

    def request(self, device: str) -> SendReply:
        """Ask the device for what is missing."""
        missing = tuple(islice(self.assembly.missing(), MAX_RESEND))
        self.asked = frozenset(missing)
        return SendReply(device, Reply("resend", self.report.version, chunks=missing))
