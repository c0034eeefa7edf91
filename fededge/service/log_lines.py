"""Log lines that the network can cause, at a bounded rate."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fededge._internal.logs import RateLimit

__all__ = ["LogLines"]

DROPPED, NOTED = 5, 20
"""Lines a minute about one device: dropped messages, and all others."""


class LogLines:
    """The log of a service. Further lines within a minute are counted, not written.

    `devices` is the number of devices that are counted one by one; the rest share a counter.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float], devices: int) -> None:
        self.log = log
        self._clock = clock
        self._dropped = RateLimit(log, DROPPED, devices)
        self._notes = RateLimit(log, NOTED, devices)

    def drop(self, topic: str, device: str, error: Exception) -> None:
        """Log that a message was not understood."""
        text = f"message on {topic} dropped: {error}"
        self._dropped.say(logging.WARNING, device, text, self._clock())

    def warn(self, text: str, device: str = "") -> None:
        self._notes.say(logging.WARNING, device, text, self._clock())

    def note(self, text: str, device: str = "") -> None:
        self._notes.say(logging.INFO, device, text, self._clock())

    def tick(self) -> None:
        """Log how many lines were left out, once a minute."""
        for limit in (self._dropped, self._notes):
            limit.tick(self._clock())
