"""Which devices a round may ask: those that are fit. Failing ones rest, hostile ones sit out."""

from __future__ import annotations

from dataclasses import dataclass, field

from fededge.config import RoundsConfig
from fededge.wire.messages import Status

__all__ = ["Fitness"]

LONGEST_REST = 3600.0


@dataclass
class Fitness:
    """What is remembered of devices that failed or sent what had to be refused.

    `tries` are failed turns in a row, `bad` refused updates in a row; `resting` and `quarantined`
    say until when a device is left alone.
    """

    config: RoundsConfig
    tries: dict[str, int] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    quarantined: dict[str, float] = field(default_factory=dict)

    def fit(self, device: str, status: Status, now: float) -> bool:
        """Whether a device may be asked now."""
        return (
            status.examples >= self.config.min_examples
            and self.resting.get(device, now) <= now
            and not self.out(device, now)
        )

    def out(self, device: str, now: float) -> bool:
        """Whether a device sits out; one whose time is over gets another chance."""
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

    def rested(self, device: str, now: float) -> bool:
        """Whether a device that failed may try again now; said once."""
        if self.resting.get(device, now + 1) > now:
            return False
        del self.resting[device]
        return True

    def refused(self, device: str, now: float) -> bool:
        """An update was bad. Whether the device is quarantined now."""
        self.bad[device] = self.bad.get(device, 0) + 1
        if not self.config.quarantine_after or self.bad[device] < self.config.quarantine_after:
            return False
        self.quarantine(device, now)
        return True

    def quarantine(self, device: str, now: float) -> None:
        self.bad.pop(device, None)
        self.quarantined[device] = now + self.config.quarantine_seconds

    def well(self, device: str) -> None:
        """A good update came: all is forgiven."""
        for memory in (self.tries, self.bad, self.resting):
            memory.pop(device, None)
