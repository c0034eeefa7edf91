"""Updates on their way to the coordinator: which chunks have come, which are to be sent.

A device sends a report, and of the chunks those that it is asked for. So nothing is sent that is
not wanted, and nothing again that has come, whoever was restarted meanwhile.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from itertools import islice

from fededge.errors import WireError
from fededge.wire.chunks import STALLED, Assembly
from fededge.wire.messages import MOST_ASKED, Reply, Report
from fededge_server.machine.events import (
    Check,
    Command,
    ExpectUpdate,
    KeepUpdateChunk,
    Note,
    SendReply,
    UpdateChunkCame,
)

__all__ = ["Transfers"]


@dataclass
class Transfer:
    """One update: what was reported of it, which chunks have come, which were asked for."""

    report: Report
    assembly: Assembly
    asked: frozenset[int] = frozenset()


@dataclass
class Transfers:
    """At most one update per device."""

    open: dict[str, Transfer] = field(default_factory=dict)

    def begin(self, device: str, report: Report, now: float) -> list[Command]:
        """Ask for the chunks of this report; if that was done, for those that do not come."""
        transfer = self.open.get(device)
        if transfer is None or transfer.report.manifest != report.manifest:
            self.open[device] = Transfer(report, Assembly(report.manifest, now))
            return [ExpectUpdate(device, report), self._ask(device)]
        transfer.assembly.patience = STALLED
        return [self._ask(device)] if transfer.assembly.overdue(now) else []

    def resume(self, device: str, report: Report, have: frozenset[int], now: float) -> None:
        """Go on with what an earlier process had begun; what it had asked for may be on its way."""
        assembly = Assembly(report.manifest, now, have=set(have))
        self.open[device] = Transfer(report, assembly, frozenset(assembly.missing()))

    def take(self, event: UpdateChunkCame, now: float) -> list[Command]:
        device, transfer = event.device, self.open.get(event.device)
        if transfer is None or transfer.report.version != event.version:
            return []  # late, or before its report: what is missing will be asked for
        try:
            piece = transfer.assembly.take(event.message, now)
        except WireError as error:
            return [Note(f"chunk dropped: {error}", device)]
        if piece is None:
            return []
        keep = KeepUpdateChunk(device, event.version, *piece)
        if transfer.assembly.complete:
            return [keep, *self._complete(device)]
        come = transfer.assembly.have
        return [keep, self._ask(device)] if come.issuperset(transfer.asked) else [keep]

    def stalled(self, present: Container[str], now: float) -> list[Command]:
        """Ask those who are there for what has not come for a while."""
        commands: list[Command] = []
        for device, transfer in [*self.open.items()]:
            if transfer.assembly.complete:
                commands += self._complete(device)  # an earlier process had no time to check it
            elif device in present and transfer.assembly.overdue(now):
                commands.append(self._ask(device))
        return commands

    def _complete(self, device: str) -> list[Command]:
        return [Check(device, self.open.pop(device).report)]

    def _ask(self, device: str) -> SendReply:
        """Ask a device for what is missing."""
        transfer = self.open[device]
        missing = tuple(islice(transfer.assembly.missing(), MOST_ASKED))
        transfer.asked = frozenset(missing)
        return SendReply(device, Reply("resend", transfer.report.version, chunks=missing))
