"""The schedule: when the next round may begin, and when the run rests instead.

Time comes in: the monotonic time with every event, the time of day as an event of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fededge.config import RoundsConfig
from fededge.hardware.hours import Hours, parse_hours
from fededge_server.machine.events import Command, Note, PublishState, TimeOfDay, Woke
from fededge_server.machine.facts import Recalled
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.rounds.round_state import RoundState

__all__ = ["Flatness", "Schedule"]

WEEK = 7 * 24 * 60


@dataclass
class Flatness:
    """Counts versions without a gain. `gain`: points of accuracy above the best that are one."""

    gain: float
    best: float | None = None
    versions: int = 0

    def scored(self, score: float | None) -> None:
        """Take a new version's accuracy; one that nobody could measure says nothing."""
        if score is None:
            return
        if self.best is None or score > self.best + self.gain / 100:
            self.best, self.versions = score, 0
        else:
            self.versions += 1

    def reset(self) -> None:
        self.best, self.versions = None, 0


@dataclass
class Schedule:
    """Holds rounds back: while the model is flat, outside of hours, for an interval, for new data.

    Attributes:
        made: when the newest version was made.
        moment: the local time of the coordinator; None before it is known.
    """

    config: RoundsConfig
    state: RoundState
    made: float = -math.inf
    moment: datetime | None = None
    flat: Flatness = field(default_factory=lambda: Flatness(0.0))
    hours: tuple[Hours, ...] = ()

    @classmethod
    def resumed(cls, state: RoundState, recalled: Recalled, now: float) -> Schedule:
        """The schedule of a run as the journal has it; its first round waits for no interval."""
        config = state.config
        made = now - max(recalled.age, 0.0) if state.round else -math.inf
        flat = Flatness(config.rest_gain)
        for score in recalled.scores:
            flat.scored(score)
        return cls(config, state, made, None, flat, parse_hours(config.hours))

    def tell_time(self, event: TimeOfDay) -> None:
        self.moment = event.moment

    def new_version(self, score: float | None, now: float) -> None:
        self.made = now
        self.flat.scored(score)

    def restart(self, now: float) -> None:
        """The run goes back to an earlier version: what was flat is given up."""
        self.made = now
        self.flat.reset()

    def follow(self, now: float) -> list[Command]:
        """Let the run rest or go on, as the schedule says now; tell of a change."""
        woke = self._wake()
        reason = self.reason(now)
        if reason == self.state.resting:
            return woke
        if reason and self.is_flat:
            self._settle()
        self.state.resting, self.state.phase = reason, "resting" if reason else "waiting"
        self.state.rests_until = self._until(now) if reason else math.inf
        said = f"the run rests: {reason}" if reason else "the run goes on"
        return [*woke, Note(said), PublishState()]

    @property
    def is_flat(self) -> bool:
        return 0 < self.config.rest_after <= self.flat.versions

    def reason(self, now: float) -> str:
        """The reason why no round may begin now; empty if one may."""
        config = self.config
        if self.is_flat:
            return (
                f"{self.flat.versions} versions without a gain; it goes on when "
                f"{self._needed} devices have new examples"
            )
        if self.hours and not self._open(self.moment):
            return f"outside of the hours {', '.join(config.hours)}"
        if now < self.made + config.interval:
            return f"{config.interval:.0f} s between two rounds"
        if self._new < config.new_data:
            return f"fewer than {config.new_data} devices have new examples"
        return ""

    @property
    def _needed(self) -> int:
        return max(1, self.config.new_data)

    @property
    def _new(self) -> int:
        return self.state.participants.count(Group.FRESH)

    def _wake(self) -> list[Command]:
        """End the rest of a flat model once there is new data; what was best counts no more."""
        if not self.is_flat or not self.state.resting or self._new < self._needed:
            return []
        self.flat.reset()
        return [Woke(self.state.round)]

    def _settle(self) -> None:
        """Take devices that were never asked as they are: only examples from now on are new."""
        for one in self.state.participants.where(Group.FRESH):
            one.trained = None if one.status is None else one.status.examples

    def _open(self, moment: datetime | None) -> bool:
        return moment is not None and any(window.include(moment) for window in self.hours)

    def _until(self, now: float) -> float:
        """The time at which the rest ends by itself; infinite if only new data ends it."""
        if self.is_flat:
            return math.inf
        if self.hours and not self._open(self.moment):
            return now + self._closed_for
        return max(now, self.made + self.config.interval)

    @property
    def _closed_for(self) -> float:
        """Seconds until the hours begin, from the start of this minute."""
        if self.moment is None:
            return 0.0
        minutes = (self.moment + timedelta(minutes=n) for n in range(WEEK))
        opens = next((m for m in minutes if self._open(m)), self.moment + timedelta(minutes=WEEK))
        return (opens - self.moment).total_seconds() - self.moment.second
