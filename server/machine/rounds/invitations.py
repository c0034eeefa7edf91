"""Invitations: which devices a round asks, when it opens and while it is open."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fededge.config import RoundsConfig
from fededge.federated.selection import choose
from fededge.wire.messages import Status, round_of
from fededge_server.machine.events import Command
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.eligibility import Eligibility
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import Part
from fededge_server.machine.rounds.round_state import RoundState

__all__ = ["Invitations"]


@dataclass(frozen=True)
class Invitations:
    """Chooses participants, and asks others in the place of those that drop out."""

    state: RoundState
    eligibility: Eligibility

    def first(self) -> dict[str, int]:
        """The devices that a new round asks, with the examples that each announced."""
        eligible = self.state.participants.where(Group.ELIGIBLE)
        self.state.places = _places(self.state.config, len(eligible))
        return self._choose(eligible, self.state.places)

    def resume(self, begun: int) -> None:
        """Go on with a round that an earlier process had begun, with so many devices."""
        share = self.state.config.share
        self.state.places = begun if share else _places(self.state.config, begun)

    def _choose(self, ready: list[Participant], count: int) -> dict[str, int]:
        seed, number, how = self.state.facts.seed, self.state.round, self.state.config.selection
        heard = {p.device: round_of(p.accepted.version) for p in ready if p.accepted}
        chosen = choose((one.device for one in ready), count, seed, number, how, heard)
        statuses = {device: self.state.participants[device].status for device in chosen}
        return {device: status.examples for device, status in statuses.items() if status}

    def ask_if_free(self, one: Participant, status: Status, now: float) -> list[Command]:
        """Ask a device that says it has nothing to do, if this round wants it.

        It may have joined since the round began, or rested, or its task was lost on the way.
        """
        free = one.part in (Part.IDLE, Part.INVITED, Part.BACKOFF, Part.EXCUSED)
        if self.state.phase != "open" or status.activity != "ready" or not free:
            return []
        if one.invited and one.part is not Part.EXCUSED:
            return self.state.invitations([one]) if one.on_call(now) else self._excuse(one)
        if not self._vacant or not self.eligibility.eligible(one, now):
            return []
        return self._ask({one.device: status.examples})

    def _excuse(self, one: Participant) -> list[Command]:
        """A device that must not be asked has not begun its turn: nobody waits for it."""
        if one.part is not Part.IDLE:
            one.move(Part.EXCUSED)
        return self.substitutes()

    @property
    def _vacant(self) -> float:
        """Places of the open round that nobody has."""
        if not self.state.places:
            return math.inf
        return max(0, self.state.places - self.state.participants.count(Group.PLACED))

    def substitutes(self) -> list[Command]:
        """Ask others in the place of a device that rests, while there is time for a turn.

        Where a round asks all devices there is nobody else to ask.
        """
        state, vacant = self.state, self._vacant
        if state.phase != "open" or state.cutoff < math.inf or vacant in (0, math.inf):
            return []
        ready = state.participants.where(Group.FREE)
        return self._ask(self._choose(ready, int(vacant))) if ready else []

    def _ask(self, examples: dict[str, int]) -> list[Command]:
        devices = [self.state.participants.of(device) for device in examples]
        for one in devices:
            one.asked = examples[one.device]
            one.move(Part.INVITED)
        return [*self.state.remember(), *self.state.invitations(devices)]


def _places(config: RoundsConfig, there: int) -> int:
    """The devices that a round asks; 0: all. 10 · 1.1 is 11.000000000000002, and 11 are meant."""
    if config.mode == "buffered":
        return 0
    wanted = config.share * there if config.share else config.participants
    return math.ceil(round(wanted * config.over_select, 6))
