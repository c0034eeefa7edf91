"""Updates on their way to the coordinator: which chunks have come, which are to be sent again."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from itertools import islice

from fededge.errors import WireError
from fededge.wire.chunks import Assembly
from fededge.wire.messages import MOST_ASKED, Reply, Report
from fededge_server.events import Answer, Check, ChunkCame, Command, Discard, Keep, Note

__all__ = ["Transfers"]


@dataclass
class Transfer:
    """One update: what was reported of it, and which chunks have come."""

    report: Report
    assembly: Assembly


@dataclass
class Transfers:
    """At most one update per device."""

    open: dict[str, Transfer] = field(default_factory=dict)

    def begin(self, device: str, report: Report, now: float) -> list[Command]:
        """Expect the chunks of this report; one that is expected already changes nothing."""
        transfer = self.open.get(device)
        if transfer is not None and transfer.report.manifest == report.manifest:
            return []
        self.open[device] = Transfer(report, Assembly(report.manifest, now))
        return [Discard(device, report.version)]

    def take(self, event: ChunkCame, now: float) -> list[Command]:
        device, transfer = event.device, self.open.get(event.device)
        if transfer is None or transfer.report.version != event.version:
            return []  # late, or before its report: what is missing will be asked for
        try:
            piece = transfer.assembly.take(event.message, now)
        except WireError as error:
            return [Note(f"chunk dropped: {error}", device)]
        if piece is None:
            return []
        keep = Keep(device, event.version, *piece)
        if not transfer.assembly.complete:
            return [keep]
        del self.open[device]
        return [keep, Check(device, transfer.report)]

    def stalled(self, present: Container[str], now: float) -> list[Command]:
        """Ask those who are there for what has not come for a while."""
        commands: list[Command] = []
        for device, transfer in self.open.items():
            if device in present and transfer.assembly.overdue(now):
                commands += self.ask(device)
        return commands

    def ask(self, device: str) -> list[Command]:
        """Ask a device for what is missing."""
        transfer = self.open[device]
        missing = tuple(islice(transfer.assembly.missing(), MOST_ASKED))
        return [Answer(device, Reply("resend", transfer.report.version, chunks=missing))]
