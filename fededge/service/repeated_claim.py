"""A service that starts before its broker waits for it; on a terminal, the start fails instead."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

from fededge.errors import TransportError
from fededge.service.notify import Notifier
from fededge.service.watchdog import SIGNS

__all__ = ["RepeatedClaim", "StopRequestedError"]

log = logging.getLogger("service")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two attempts: doubled each time."""


class StopRequestedError(Exception):
    """The service was asked to stop before its loop began."""


class RepeatedClaim:
    """Claims a name at the broker, again and again until the broker answers.

    The service counts as ready before the first attempt: its configuration is valid and its state
    folder is open, and a broker that is not there yet must not hold up the machine's start.

    Args:
        claim: makes one attempt; TransportError if the broker is unreachable or refuses us.
        notifier: is told that the service is ready, and what it waits for.
        progress: called after each attempt.
    """

    def __init__(
        self, claim: Callable[..., None], notifier: Notifier, progress: Callable[[], None]
    ) -> None:
        self.claim = claim
        self.notifier = notifier
        self.progress = progress
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()

    def stop(self) -> None:
        """End the wait; safe from a signal handler."""
        self._stops.put(None)

    def __call__(self, *arguments: object) -> None:
        self.notifier.ready()
        reason, pause = "", FIRST_PAUSE
        while failure := self._attempt(arguments):
            if failure != reason:
                log.warning("waiting for the broker: %s", failure)
                self.notifier.status(f"waiting for the broker: {failure}")
            self.progress()
            self._wait(pause)
            reason, pause = failure, min(2 * pause, self._longest_pause)
        self.notifier.status("connected")

    @property
    def _longest_pause(self) -> float:
        """A pause must not look like a hang to the watchdog."""
        limit = self.notifier.watchdog
        return min(LONGEST_PAUSE, limit / SIGNS) if limit else LONGEST_PAUSE

    def _attempt(self, arguments: tuple[object, ...]) -> str:
        """Try once; the reason of a failure, or nothing."""
        try:
            self.claim(*arguments)
        except TransportError as error:
            return str(error)
        return ""

    def _wait(self, seconds: float) -> None:
        try:
            self._stops.get(timeout=seconds)
        except queue.Empty:
            return
        raise StopRequestedError
