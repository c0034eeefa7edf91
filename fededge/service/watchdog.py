"""The watchdog: systemd restarts a service whose loop makes no progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fededge.service.notify import Notifier

__all__ = ["Watchdog"]

SIGNS = 4
"""Signs of life within the manager's limit: a slow event must not look like a hang."""


class Watchdog:
    """Feeds systemd's watchdog when the loop has made progress, at a bounded rate.

    No timer feeds it: a loop that hangs is silent, and is restarted.
    """

    def __init__(self, notifier: Notifier, clock: Callable[[], float] = time.monotonic) -> None:
        self.notifier = notifier
        self.clock = clock
        self._fed = -math.inf

    def progress(self) -> None:
        """Called by the loop after each event and each tick."""
        limit, now = self.notifier.watchdog, self.clock()
        if limit and now - self._fed >= limit / SIGNS:
            self._fed = now
            self.notifier.alive()
