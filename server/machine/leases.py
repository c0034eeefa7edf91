"""Presence is a lease: who gave no sign of life for a while is gone, whatever is retained of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Leases"]


@dataclass
class Leases:
    """When each device was heard last. Time comes in."""

    seconds: float
    heard: dict[str, float] = field(default_factory=dict)

    def renew(self, device: str, now: float) -> None:
        """The device gave a sign of life."""
        self.heard[device] = now

    def begin(self, devices: Iterable[str], now: float) -> None:
        """Give those a first lease of whom nothing is known but what the broker or journal kept."""
        for device in devices:
            self.heard.setdefault(device, now)

    def valid(self, device: str, now: float) -> bool:
        return now - self.heard.get(device, now) < self.seconds
