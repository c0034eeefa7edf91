"""Updates of the open round: reports, chunks, checks and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fededge.errors import WireError
from fededge.wire.chunks import whole
from fededge.wire.messages import Reply, Report
from fededge_server.machine.events import (
    Bad,
    Check,
    Command,
    Discard,
    ExpectUpdate,
    Note,
    RefusalWritten,
    Refuse,
    ReportCame,
    SendReply,
    Stored,
    UpdateChunkCame,
)
from fededge_server.machine.fleet.eligibility import Eligibility
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import Part
from fededge_server.machine.fleet.standings import SHUT_OUT
from fededge_server.machine.rounds.round_state import RoundState
from fededge_server.machine.updates.report_checks import flaw, foreign
from fededge_server.machine.updates.transfers import Transfer, share_of_flight

__all__ = ["Updates"]


@dataclass(frozen=True)
class Updates:
    """Decides which updates are taken. A report's claims decide nothing that is known here."""

    state: RoundState
    eligibility: Eligibility

    # Reports

    def report(self, event: ReportCame, now: float) -> list[Command]:
        device, report = event.device, event.report
        one = self.state.participants.of(device)
        one.heard = now
        reply = self.verdict(one, report, now)
        if reply is None and self.state.phase == "open":
            wrong = flaw(self.state.facts, report, self._announced(one, report.version))
            # Anybody can make a bad report on an open broker: it says nothing about the device.
            reply = Reply("refused", report.version, wrong) if wrong else None
        if reply is not None:
            text = f"update {reply.kind}: {reply.reason}" if reply.reason else "asked again"
            return [Note(text, device), SendReply(device, reply)]
        busy = self.state.full or one.part in (Part.CHECKING, Part.STORED)
        if self.state.phase != "open" or busy:
            return []  # the device keeps its update, and asks again when the round opens
        if event.chunk:
            return self._take_whole(one, event, now)
        return self._begin(one, report, now)

    def _announced(self, one: Participant, version: str) -> int:
        """The examples that a device had when it was asked, or has now."""
        now = one.status.examples if one.status is not None else 0
        return max(self.state.asked_for(one, version) or 0, now)

    def verdict(self, one: Participant, report: Report, now: float) -> Reply | None:
        """The reply that a report gets at once; None if its chunks are wanted, now or later."""
        version, state = report.version, self.state
        reason = foreign(state.facts, one.device, report)
        if reason:
            return Reply("refused", version, reason)
        if one.accepted is not None and one.accepted.version == version:
            return Reply("accepted", version)
        late = state.too_late(version)
        if late:
            return Reply("late", version, late)
        if version != state.version and version not in state.recent:
            reason = f"trained from version {version}, wanted is {state.version}"
        elif state.outdated(one, version):
            reason = "a later update of this device was accepted: this one is a repetition"
        elif state.phase == "open" and state.asked_for(one, version) is None:
            reason = f"the device was not asked for version {version}"
        elif one.part is Part.REFUSED:
            reason = "an update of this device was refused in this round"
        elif one.standing in SHUT_OUT:
            reason = SHUT_OUT[one.standing]
        elif one.quarantined(now):
            reason = "the device is in quarantine: too many of its updates had to be refused"
        return Reply("refused", version, reason) if reason else None

    def _take_whole(self, one: Participant, event: ReportCame, now: float) -> list[Command]:
        """Have an update checked that came with its report; ask for it if its chunk is damaged."""
        try:
            data = whole(event.chunk, event.report.manifest)
        except WireError as error:
            note = Note(f"chunk dropped: {error}", one.device)
            return [note, *self._begin(one, event.report, now)]
        one.move(Part.SENDING)
        one.move(Part.CHECKING)
        return [Check(one.device, event.report, data)]

    def _begin(self, one: Participant, report: Report, now: float) -> list[Command]:
        """Ask for the chunks of this report; if that was done, for those that do not come."""
        if one.transfer is None or one.transfer.report.manifest != report.manifest:
            one.move(Part.SENDING)
            one.transfer = Transfer.begun(report, now)
            return [ExpectUpdate(one.device, report), self._request(one, one.transfer)]
        one.transfer.renew()
        return [self._request(one, one.transfer)] if one.transfer.overdue(now) else []

    def _request(self, one: Participant, transfer: Transfer) -> SendReply:
        return transfer.request(one.device, self._share)

    @property
    def _share(self) -> int:
        """The chunks that each sender may have on their way."""
        senders = self.state.participants.count(Part.SENDING)
        return share_of_flight(self.state.facts.chunk_bytes, senders)

    def resume(self, one: Participant, report: Report, have: frozenset[int], now: float) -> None:
        """Go on with an update that was on its way when an earlier process ended."""
        wanted = not self.state.too_late(report.version) and not one.quarantined(now)
        if one.part is not Part.IDLE or not wanted or self.state.outdated(one, report.version):
            return
        one.move(Part.SENDING)
        one.transfer = Transfer.resumed(report, have, now)

    # Chunks

    def chunk(self, event: UpdateChunkCame, now: float) -> list[Command]:
        one = self.state.participants.of(event.device)
        one.heard = now
        if self.state.phase == "merging":
            return []  # it is too late for this version; if the next can take it, it is asked for
        if one.transfer is None or one.transfer.report.version != event.version:
            return []  # late, or before its report: what is missing will be asked for
        commands = one.transfer.take(event, now, self._share)
        return [*commands, self._complete(one)] if commands and one.transfer.complete else commands

    def stalled(self, now: float) -> list[Command]:
        """Ask for chunks that do not come, and for a turn: the device may have lost its update."""
        commands: list[Command] = []
        silent: list[Participant] = []
        if self.state.phase == "merging":
            return []
        for one in self.state.participants.doing(Part.SENDING):
            assert one.transfer is not None
            if one.transfer.complete:  # an earlier process had no time to check it
                commands.append(self._complete(one))
            elif one.online and one.transfer.overdue(now):
                commands.append(self._request(one, one.transfer))
                silent += [one] * (one.transfer.report.version == self.state.version)
        return commands + self.state.invitations(o for o in silent if o.invited and o.present)

    def _complete(self, one: Participant) -> Check:
        assert one.transfer is not None
        report = one.transfer.report
        one.move(Part.CHECKING)
        return Check(one.device, report)

    # Verdicts

    def stored(self, event: Stored, now: float) -> list[Command]:
        one, report = self.state.participants.of(event.device), event.report
        if one.part is not Part.CHECKING:
            return []  # given up meanwhile; the device reports it again
        one.move(Part.STORED)
        one.stored, one.accepted, one.change = report, report, event.norm
        one.took = now - self.state.opened
        self.eligibility.well(one)
        return [SendReply(one.device, Reply("accepted", report.version))]

    def bad(self, event: Bad, now: float) -> list[Command]:
        one = self.state.participants.of(event.device)
        if one.part is not Part.CHECKING:
            return []  # given up meanwhile; the device reports it again
        quarantined = self.eligibility.refused(one, now)
        version = event.version or self.state.version
        return self._refuse(one, version, event.reason, quarantined)

    def _refuse(
        self, one: Participant, version: str, reason: str, quarantined: bool
    ) -> list[Command]:
        one.move(Part.REFUSED)
        one.why = reason
        return [
            Note(f"update refused{', now in quarantine' * quarantined}: {reason}", one.device),
            *self._write(Refuse(one.device, version, reason, quarantined)),
            SendReply(one.device, Reply("refused", version, reason)),
        ]

    def _write(self, refusal: Refuse) -> list[Command]:
        """Forget an update and write its refusal down; it is unwritten until the answer comes."""
        self.state.unwritten[refusal.device, refusal.version] = refusal
        return [Discard(refusal.device, refusal.version), refusal]

    def written(self, event: RefusalWritten) -> None:
        self.state.unwritten.pop((event.device, event.version), None)

    def write_again(self) -> list[Command]:
        """Write refusals that a full disk has dropped, and repeat the replies dropped with them."""
        commands: list[Command] = []
        for refusal in [*self.state.unwritten.values()]:
            commands += self._write(refusal)
            if self.state.participants.of(refusal.device).part is Part.REFUSED:
                reply = Reply("refused", refusal.version, refusal.reason)
                commands.append(SendReply(refusal.device, reply))
        return commands

    def withdraw(self, reason: str) -> list[Command]:
        """Refuse all that was stored in this round, through no fault of the devices."""
        commands: list[Command] = []
        for one in self.state.participants.doing(Part.STORED):
            assert one.stored is not None
            version, one.accepted = one.stored.version, None
            commands += self._write(Refuse(one.device, version, reason, quarantined=False))
        return commands

    def revoke(self, one: Participant, reason: str, now: float) -> list[Command]:
        """Refuse an update that was accepted: no version can be made with it."""
        assert one.stored is not None
        version, one.accepted = one.stored.version, None
        self.eligibility.quarantine(one, now)
        return self._refuse(one, version, reason, quarantined=True)

    def drop_all(self) -> list[Command]:
        """The disk is full: devices keep their updates, and report them again."""
        dropped: list[Command] = []
        for one in self.state.participants.doing(Part.SENDING, Part.CHECKING):
            if one.transfer is not None:
                dropped.append(Discard(one.device, one.transfer.report.version))
            one.move(Part.INVITED if one.invited else Part.IDLE)
        return dropped

    def give_up(self, senders: Iterable[Participant]) -> list[Command]:
        """Their updates are of no use any more, and need not be sent to the end."""
        commands: list[Command] = []
        for one in senders:
            assert one.transfer is not None
            version = one.transfer.report.version
            one.move(Part.IDLE)
            commands.append(SendReply(one.device, Reply("late", version, "the round is over")))
        return commands
