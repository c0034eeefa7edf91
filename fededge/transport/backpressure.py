"""Backpressure: a bound on the messages that have arrived and are not handled yet.

A broker should respect our Receive Maximum. Mosquitto 2.0 does so only until the first
acknowledgement and then sends all it has, so without this bound a fleet could fill our memory.
"""

from __future__ import annotations

import threading

__all__ = ["Backlog"]

MAX_BYTES = 8 * 1024 * 1024
MAX_PAUSE = 0.5
"""Longest block for one message, in seconds: pings must be answered while the reader is busy."""


class Backlog:
    """Blocks the receiver while 8 MiB are unhandled; the rest waits in the socket and broker."""

    def __init__(self) -> None:
        self.bytes = 0
        self._changed = threading.Condition()

    def add(self, size: int) -> None:
        """Count an arrived message; block until there is room for it, at most MAX_PAUSE."""
        with self._changed:
            self._changed.wait_for(lambda: self.bytes < MAX_BYTES, MAX_PAUSE)
            self.bytes += size

    def remove(self, size: int) -> None:
        """Count a message as handled."""
        with self._changed:
            self.bytes -= size
            self._changed.notify()
