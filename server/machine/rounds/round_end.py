"""Rules for the end of a round: when it is over, and how its participants are judged."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fededge.federated.bounds import norm_limit, outlier
from fededge_server.machine.events import ACCURACY, Command, Judge, Note
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.eligibility import Eligibility
from fededge_server.machine.fleet.parts import OUT, Part
from fededge_server.machine.rounds.round_state import RoundState
from fededge_server.machine.updates.updates import Updates

__all__ = ["RoundEnd"]

MOST_SWIFT = 2 / 3
"""Once so many have answered, the others have `slack` times their time: fewer may be hostile."""

LEAST_WAIT = 10.0
"""Seconds that a round waits at least for those who have not answered."""

UNJUDGED = frozenset({Part.EXCUSED, Part.REFUSED})
"""Parts of devices that say nothing about a version: they rest, or their updates were bad."""


@dataclass(frozen=True)
class RoundEnd:
    """The rules by which an open round ends."""

    state: RoundState
    eligibility: Eligibility
    updates: Updates

    def limit(self, start: float) -> float:
        """The longest change that an update may make; `start`: the norm of the model itself.

        It is the same for all updates of a round, unless devices join meanwhile.
        """
        facts = self.state.version, start, self.state.participants.count(Group.KNOWN)
        if self.state.limit is None or self.state.limit[0] != facts:
            merged = (one.merged_change for one in self.state.participants.values())
            norms = [norm for norm in merged if norm is not None]
            self.state.limit = facts, self._norm_limit(norms, start)
        return self.state.limit[1]

    def _norm_limit(self, norms: list[float], start: float) -> float:
        fleet = self.state.participants.count(Group.KNOWN)
        return norm_limit(norms, self.state.facts.norm_factor, start, fleet)

    def over(self, now: float) -> bool:
        """Enough have answered, all have, or the deadline has come with a quorum."""
        if self.state.participants.count(Part.STORED) < self.state.config.quorum:
            return False
        waiting = self.state.participants.count(Group.EXPECTED)
        return self.answered >= self.wanted or not waiting or self._expired(now)

    @property
    def answered(self) -> int:
        return self.state.participants.count(Group.ANSWERED)

    @property
    def wanted(self) -> int:
        """Updates that end a round at once."""
        if self.state.config.mode == "buffered":
            return self.state.config.buffer
        asked = self.state.participants.count(Group.WANTED)
        if self.state.config.share:
            return math.ceil(round(asked / self.state.config.over_select, 6))
        return self.state.config.participants or asked

    def _expired(self, now: float) -> bool:
        """True once the deadline has come; devices that are sending have a grace."""
        due = min(self.state.deadline, self.state.cutoff)
        if now < due:
            return False
        sending = any(one.online for one in self.state.participants.doing(Part.SENDING))
        return now >= due + (self.state.config.grace if sending else 0.0)

    def cut_off(self, now: float) -> None:
        """Once most have answered it is known what a turn takes: the others get some times that."""
        state = self.state
        placed = self.state.participants.count(Group.PLACED)
        most = math.ceil(round(MOST_SWIFT * placed, 6))
        known = state.cutoff < math.inf or self.answered < most
        if self.state.config.slack and self.state.config.mode == "synchronous" and not known:
            state.cutoff = state.opened + max(
                LEAST_WAIT, self.state.config.slack * (now - state.opened)
            )

    def outliers(self, now: float) -> list[Command]:
        """Refuse changes that are too long beside the others of this round.

        The first updates of a run are judged only here: before, nothing was known of the fleet.
        """
        stored = self.state.participants.doing(Part.STORED)
        others = [one for one in self.state.participants.values() if one.part is not Part.STORED]
        norms = [one.merged_change for one in others if one.merged_change is not None]
        limit = self._norm_limit([*norms, *(one.change for one in stored)], math.inf)
        found = [(one, outlier(one.change, limit)) for one in stored if one.change > limit]
        return [c for one, why in found for c in self.updates.revoke(one, why, now)]

    def missed(self, now: float) -> list[Command]:
        """Devices that the round has waited for in vain lose their place for a while.

        Not those that back off already, after a failure: they were not asked.
        """
        if self.state.config.mode == "buffered":
            return []
        awaited = self.state.participants.where(Group.AWAITED)
        silent = [one for one in awaited if not one.backs_off(now)]
        took = now - self.state.opened
        for one in silent:
            one.why = f"it did not answer within {took:.0f} s"
        pauses = [(one.device, self.eligibility.missed(one, took, now)) for one in silent]
        return [Note(f"did not answer, backs off for {s:.0f} s", d) for d, s in pauses]

    def judge(self, now: float) -> Judge:
        told = {device: report.scalars for device, report in self.state.participants.stored.items()}
        known = {d: scalars[ACCURACY] for d, scalars in told.items() if ACCURACY in scalars}
        invited = self.state.participants.where(Group.INVITED)
        asked = [o for o in invited if o.part not in UNJUDGED and not o.quarantined(now)]
        failed = sum(one.part in OUT or one.failures > 0 for one in asked)
        return Judge(self.state.version, len(asked), failed, known)
