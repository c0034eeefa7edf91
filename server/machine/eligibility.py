"""Rules for asking devices: failing and silent ones rest, hostile ones are in quarantine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fededge.config import RoundsConfig
from fededge_server.machine.participants import Participant

__all__ = ["Eligibility"]

LONGEST_REST = 3600.0
LONGEST_SILENCE = 24 * 3600.0
"""A silent device may hold up a round once a day, and an honest one comes back that often."""


@dataclass(frozen=True)
class Eligibility:
    """The rules; what they go by is in each participant's record."""

    config: RoundsConfig

    def enough(self, one: Participant) -> bool:
        """True if a device is present, with as much data as a round wants."""
        return one.status is not None and one.status.examples >= self.config.min_examples

    def eligible(self, one: Participant, now: float) -> bool:
        """True if a device may be asked now."""
        return self.enough(one) and not one.rests(now) and not one.quarantined(now)

    def failed(self, one: Participant, now: float) -> bool:
        """A turn failed: the device rests, each time twice as long. True if it may try again."""
        one.failures += 1
        rest = self.config.backoff * 2.0 ** min(one.failures - 1, 20)
        one.rests_until = now + min(rest, LONGEST_REST)
        return one.failures <= self.config.retries

    def missed(self, one: Participant, took: float, now: float) -> float:
        """A round waited in vain for `took` seconds: the device rests, each time twice as long."""
        one.silences += 1
        rest = max(self.config.backoff, took) * 2.0 ** min(one.silences - 1, 20)
        rest = min(rest, LONGEST_SILENCE)
        one.rests_until = max(now + rest, one.rests_until or 0.0)
        return rest

    def refused(self, one: Participant, now: float) -> bool:
        """An update was bad. True if the device is quarantined now.

        Good updates in between do not help: the last verdicts count, twice as many as refusals
        that lead to quarantine.
        """
        if not self.config.quarantine_after:
            return False
        self._record(one, refused=True)
        if sum(one.verdicts) < self.config.quarantine_after:
            return False
        self.quarantine(one, now)
        return True

    def quarantine(self, one: Participant, now: float) -> None:
        one.verdicts.clear()
        one.quarantined_until = now + self.config.quarantine_seconds

    def well(self, one: Participant) -> None:
        """A good update came: failed turns are forgiven, and half of the silent ones."""
        one.failures, one.rests_until = 0, None
        one.silences //= 2
        if self.config.quarantine_after and one.verdicts:
            self._record(one, refused=False)

    def _record(self, one: Participant, refused: bool) -> None:
        last = 2 * self.config.quarantine_after
        one.verdicts = deque([*one.verdicts, refused], maxlen=last)
