"""Tracks which devices are present: by their statuses, and by leases that run out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fededge.config import RoundsConfig
from fededge.wire.messages import Status
from fededge_server.machine.eligibility import Eligibility
from fededge_server.machine.events import Command, Note, StatusCame
from fededge_server.machine.participants import Part, Participant
from fededge_server.machine.round_state import RoundState

__all__ = ["PresenceTracker", "places"]

JUMP = 10
"""A device that announces so many times the examples it had before is named in the log."""

OUT = frozenset({Part.FAILED, Part.REFUSED, Part.QUARANTINED})
"""Parts of devices that a round has asked, and does not wait for any more."""


def places(config: RoundsConfig, there: int) -> int:
    """How many devices a round asks; 0: all. 10 · 1.1 is 11.000000000000002, and 11 are meant."""
    if config.mode == "buffered":
        return 0
    wanted = config.share * there if config.share else config.participants
    return math.ceil(round(wanted * config.over_select, 6))


@dataclass(frozen=True)
class PresenceTracker:
    """Follows the devices' statuses, and asks those for a turn that the round can use."""

    state: RoundState
    eligibility: Eligibility

    def status(self, event: StatusCame, now: float) -> list[Command]:
        device, status = event.device, event.status
        if status.device != device:
            text = f"a status of device '{status.device}' came on this one's topic: dropped"
            return [Note(text, device)]
        one = self.state.participants.of(device)
        if event.retained and not self.state.leased(one, now):
            return []  # the broker retained it of a device that is gone
        before = one.status
        one.leave()
        if not status.online:
            return [Note("left", device)] if before else []
        one.heard = one.heard if event.retained and one.heard is not None else now
        if status.activity == "starting":
            return []
        if status.activity == "unable":
            return self._unable(one, status.problem)
        if status.layout != self.state.facts.layout:
            return self._unable(one, self._other_layout(status))
        return self._present(one, before, status, now)

    def _unable(self, one: Participant, reason: str) -> list[Command]:
        """No round waits for a device that cannot take part, unless its update is on its way."""
        if one.part in (Part.INVITED, Part.RESTING):
            one.move(Part.FAILED)
        return [Note(f"cannot take part: {reason}", one.device)]

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
        asked = self._ask_if_free(one, status, now)
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
        """A turn failed on the device: it rests and is asked again, but not for ever."""
        if not one.invited or one.part in OUT or one.rests_until is not None:
            return []
        again = self.eligibility.failed(one, now)
        if one.part is Part.INVITED:
            one.move(Part.RESTING if again else Part.FAILED)
        return [Note(f"failed, {'rests' if again else 'sits out'}: {status.problem}", one.device)]

    def _ask_if_free(self, one: Participant, status: Status, now: float) -> list[Command]:
        """Ask a device that says it has nothing to do, if this round wants it.

        It may have joined since the round began, or its task was lost on the way.
        """
        free = one.part in (Part.IDLE, Part.INVITED, Part.RESTING)
        if self.state.phase != "open" or status.activity != "ready" or not free:
            return []
        if one.invited:
            return self.state.invitations([one])
        invited = self.state.participants.where(lambda other: other.invited)
        most = places(self.state.config, len(invited))
        if most and sum(other.part not in OUT for other in invited) >= most:
            return []
        if not self.eligibility.eligible(one, now):
            return []
        one.asked = status.examples
        one.move(Part.INVITED)
        return [self.state.remember(), *self.state.invitations([one])]

    def expire(self, now: float) -> list[Command]:
        """A device without a sign of life is gone, whatever the broker retains of it."""
        gone = [o for o in self.state.participants.present if not self.state.leased(o, now)]
        for one in gone:
            one.leave()
        seconds = self.state.config.lease
        return [Note(f"gave no sign of life for {seconds:.0f} s: gone", o.device) for o in gone]

    def retry(self, now: float) -> list[Command]:
        """Ask those again that have rested."""
        if self.state.phase != "open":
            return []
        rested = self.state.participants.where(lambda one: self._rested(one, now))
        for one in rested:
            one.rests_until = None
            one.move(Part.INVITED)
        return self.state.invitations(rested)

    def _rested(self, one: Participant, now: float) -> bool:
        """True if a device that the round waits for has had its rest."""
        waits = one.invited and one.part in (Part.INVITED, Part.RESTING)
        return waits and one.present and one.rests_until is not None and not one.rests(now)
