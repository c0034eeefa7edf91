"""What has come from the broker and was not handled yet: bounded, whatever the broker does.

A broker should hold back what exceeds our Receive Maximum. Mosquitto 2.0 does so only until the
first acknowledgement, and sends all it has from then on: the memory would be the fleet's to take.
"""

from __future__ import annotations

import threading

__all__ = ["Backlog"]

MOST_BYTES = 8 * 1024 * 1024
PAUSE = 0.5
"""Seconds that one message waits at most: pings must be answered while the reader is busy."""


class Backlog:
    """Who receives waits here for who handles: the rest stays in the socket and at the broker."""

    def __init__(self) -> None:
        self.bytes = 0
        self._changed = threading.Condition()

    def add(self, size: int) -> None:
        """A message has come: wait until there is room for it, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: self.bytes < MOST_BYTES, PAUSE)
            self.bytes += size

    def remove(self, size: int) -> None:
        """A message was handled."""
        with self._changed:
            self.bytes -= size
            self._changed.notify()
