"""The inbox of a service, and the loop that reads it: one thread decides."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["InboxLoop", "Served"]

TICK = 0.5
"""Seconds between two ticks."""

MOST_TOGETHER = 64
"""Events that a service may handle before it must finish what they led to."""


class Served(Protocol):
    """A service that the loop drives; the loop ends when it is `done`."""

    @property
    def done(self) -> bool: ...
    def take(self, event: Any) -> None: ...
    def pause(self) -> None: ...
    def tick(self) -> None: ...


class InboxLoop:
    """The queue that other threads put events into, and the loop that takes them out.

    `progress` is called after each event and each tick that was handled: it feeds the watchdog.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = clock
        self.progress = progress
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopping = False

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler."""
        self._stopping = True
        self.inbox.put(None)  # wakes the loop

    def run(self, served: Served) -> None:
        """Hand over events as they come, and a tick every half second, until stopped or done.

        The service hears when no event waits, so that it can finish several of them together.
        """
        next_tick, taken = self.clock() + TICK, 0
        while not self._stopping and not served.done:
            with contextlib.suppress(queue.Empty):
                event = self.inbox.get(timeout=max(0.0, next_tick - self.clock()))
                if event is not None:
                    served.take(event)
                    self.progress()
            taken += 1
            if self.inbox.empty() or taken >= MOST_TOGETHER:
                taken = 0
                served.pause()
            if self.clock() >= next_tick:
                next_tick = self.clock() + TICK
                served.tick()
                self.progress()
