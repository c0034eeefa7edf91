"""Tracks which devices are present: by their statuses, and by leases that run out."""

from __future__ import annotations

from dataclasses import dataclass

from fededge.wire.messages import Status
from fededge_server.machine.events import Command, Note, StatusCame
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.eligibility import Eligibility
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import OUT, Part
from fededge_server.machine.fleet.standings import Standing
from fededge_server.machine.rounds.invitations import Invitations
from fededge_server.machine.rounds.round_state import RoundState

__all__ = ["PresenceTracker"]

JUMP = 10
"""A device that announces so many times the examples it had before is named in the log."""


@dataclass(frozen=True)
class PresenceTracker:
    """Follows the devices' statuses, and asks those for a turn that the round can use."""

    state: RoundState
    eligibility: Eligibility
    invitations: Invitations

    def status(self, event: StatusCame, now: float) -> list[Command]:
        device, status = event.device, event.status
        if status.device != device:
            text = f"a status of device '{status.device}' came on this one's topic: dropped"
            return [Note(text, device)]
        one = self.state.participants.of(device)
        if one.standing is Standing.REVOKED:
            return []
        if event.retained and not self.eligibility.leased(one, now):
            return []  # the broker retained it of a device that is gone
        before, rested = one.status, one.resting
        one.leave()
        if not status.online:
            return [Note("left", device)] if before else []
        one.heard = one.heard if event.retained and one.heard is not None else now
        if status.activity == "resting":
            return self._rests(one, status, rested, now)
        if status.activity == "starting":
            return []
        if status.activity == "unable":
            return self._unable(one, status.problem)
        if status.layout != self.state.facts.layout:
            return self._unable(one, self._other_layout(status))
        return self._present(one, before, status, now)

    def _rests(self, one: Participant, status: Status, rested: bool, now: float) -> list[Command]:
        """A device's own conditions forbid a turn now: no failure, and others take its place.

        It may not have prepared for this run, so its layout and examples say nothing.
        """
        one.rest(status)
        note: list[Command] = [] if rested else [Note(f"rests: {status.problem}", one.device)]
        if one.part is Part.INVITED:
            self.eligibility.gave_up(one, now - self.state.opened, self._awaited(one, now), now)
        elif one.part is not Part.BACKOFF:
            return note
        one.move(Part.EXCUSED)
        return [*note, *self.invitations.substitutes()]

    def _awaited(self, one: Participant, now: float) -> bool:
        """True if the round has waited for a device so long that its rest counts as silence."""
        rounds = self.state.config.mode != "buffered"
        return rounds and self.state.late(now) and not one.backs_off(now)

    def _unable(self, one: Participant, reason: str) -> list[Command]:
        """Let no round wait for a device that cannot take part, unless its update is on its way.

        Its status comes again and again; the log has the reason once.
        """
        if one.part in (Part.INVITED, Part.BACKOFF):
            one.move(Part.FAILED)
        told, one.why = one.why == reason, reason
        return [] if told else [Note(f"cannot take part: {reason}", one.device)]

    def _other_layout(self, status: Status) -> str:
        ours, theirs = self.state.facts.layout, status.layout or "unknown"
        return f"the device's layout is {theirs}, the federation's is {ours}"

    def _present(
        self, one: Participant, before: Status | None, status: Status, now: float
    ) -> list[Command]:
        one.arrive(status)
        jump = self._jump(one, status.examples)
        if status.activity == "failed":
            return [*jump, *self._failed(one, status, now)]
        asked = self.invitations.ask_if_free(one, status, now)
        if before is not None and before.instance == status.instance:
            return [*jump, *asked]
        return [Note(f"joined with {status.examples} examples", one.device), *jump, *asked]

    def _jump(self, one: Participant, examples: int) -> list[Command]:
        """Name a device that suddenly has far more examples: they decide its weight."""
        before = examples if one.announced is None else one.announced
        one.announced = examples
        if examples <= JUMP * max(before, 1):
            return []
        return [Note(f"announces {examples} examples, {before} before", one.device)]

    def _failed(self, one: Participant, status: Status, now: float) -> list[Command]:
        """A turn failed on the device: it backs off and is asked again, but not for ever."""
        if not one.invited or one.part in OUT or one.backoff_until is not None:
            return []
        again = self.eligibility.failed(one, now)
        again, one.why = again and one.on_call(now), status.problem
        if one.part is Part.INVITED:
            one.move(Part.BACKOFF if again else Part.FAILED)
        return [
            Note(f"failed, {'backs off' if again else 'sits out'}: {status.problem}", one.device)
        ]

    def expire(self) -> list[Command]:
        """A device without a sign of life is gone, whatever the broker retains of it."""
        gone = self.state.participants.where(Group.GONE)
        for one in gone:
            one.leave()
        seconds = self.state.config.lease
        return [Note(f"gave no sign of life for {seconds:.0f} s: gone", o.device) for o in gone]

    def retry(self) -> list[Command]:
        """Ask those again whose backoff is over."""
        if self.state.phase != "open":
            return []
        ready = self.state.participants.where(Group.RETRIED)
        for one in ready:
            one.backoff_until = None
            one.move(Part.INVITED)
        return self.state.invitations(ready)
