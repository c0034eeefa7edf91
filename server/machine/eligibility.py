"""Which devices a round may ask. Failing and silent ones rest, hostile ones are in quarantine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fededge.config import RoundsConfig
from fededge.wire.messages import Status

__all__ = ["Eligibility"]

LONGEST_REST = 3600.0
LONGEST_SILENCE = 24 * 3600.0
"""A silent device may hold up a round once a day, and an honest one comes back that often."""


@dataclass
class Eligibility:
    """A memory of devices that failed, kept silent, or sent updates that had to be refused.

    `tries` are failed turns in a row, `silent` unanswered ones; `refusals` are the last verdicts on
    a device's updates, True for a refusal. `resting` and `quarantined` say until when a device is
    left alone.
    """

    config: RoundsConfig
    tries: dict[str, int] = field(default_factory=dict)
    silent: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, deque[bool]] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    quarantined: dict[str, float] = field(default_factory=dict)

    def enough(self, status: Status) -> bool:
        """Whether a device has the data that a round wants."""
        return status.examples >= self.config.min_examples

    def fit(self, device: str, status: Status, now: float) -> bool:
        """Whether a device may be asked now."""
        rests = self.resting.get(device, now) > now
        return self.enough(status) and not rests and not self.out(device, now)

    def out(self, device: str, now: float) -> bool:
        """Whether a device is in quarantine; one whose time is over gets another chance."""
        if self.quarantined.get(device, now) > now:
            return True
        self.quarantined.pop(device, None)
        return False

    def failed(self, device: str, now: float) -> bool:
        """A turn failed: the device rests, each time twice as long. Whether it may try again."""
        tries = self.tries[device] = self.tries.get(device, 0) + 1
        rest = self.config.backoff * 2.0 ** min(tries - 1, 20)
        self.resting[device] = now + min(rest, LONGEST_REST)
        return tries <= self.config.retries

    def missed(self, device: str, took: float, now: float) -> float:
        """A round waited in vain, so long: the device loses its place, each time twice as long."""
        silent = self.silent[device] = self.silent.get(device, 0) + 1
        rest = max(self.config.backoff, took) * 2.0 ** min(silent - 1, 20)
        rest = min(rest, LONGEST_SILENCE)
        self.resting[device] = max(now + rest, self.resting.get(device, 0.0))
        return rest

    def rested(self, device: str, now: float) -> bool:
        """Whether a device that failed may try again now; said once."""
        if self.resting.get(device, now + 1) > now:
            return False
        del self.resting[device]
        return True

    def refused(self, device: str, now: float) -> bool:
        """An update was bad. Whether the device is quarantined now.

        Good ones in between do not help: the last verdicts count, as many again as put one there.
        """
        if not self.config.quarantine_after:
            return False
        self._verdict(device, True)
        if sum(self.refusals[device]) < self.config.quarantine_after:
            return False
        self.quarantine(device, now)
        return True

    def quarantine(self, device: str, now: float) -> None:
        self.refusals.pop(device, None)
        self.quarantined[device] = now + self.config.quarantine_seconds

    def well(self, device: str) -> None:
        """A good update came: failed turns are forgiven, and half of the silent ones."""
        self.tries.pop(device, None)
        self.resting.pop(device, None)
        if half := self.silent.pop(device, 0) // 2:
            self.silent[device] = half
        if self.config.quarantine_after and device in self.refusals:
            self._verdict(device, False)

    def _verdict(self, device: str, refused: bool) -> None:
        last = 2 * self.config.quarantine_after
        self.refusals.setdefault(device, deque(maxlen=last)).append(refused)
