"""Outgoing chunks, a few at a time, so that small messages get through on a slow link.

A waiting message is a function that makes its bytes, to save memory. Each topic is queued at most
once: a chunk that is requested again while it waits or is in flight is sent once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Outbox", "Parcel"]

WINDOW = 2 * 1024 * 1024
"""Bytes in flight; the next message is sent when one is acknowledged."""


class Parcel(NamedTuple):
    """A message that is made when it is sent; it is skipped if `make` returns None."""

    topic: str
    make: Callable[[], bytes | None]
    retain: bool = False
    expiry: int | None = None


@dataclass
class Outbox:
    """Queue with a window of bytes in flight; `hand` publishes a message and returns its number."""

    hand: Callable[[Parcel, bytes], int]
    waiting: dict[str, Parcel] = field(default_factory=dict)
    in_flight: dict[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.in_flight

    def put(self, parcel: Parcel) -> None:
        if parcel.topic not in self:
            self.waiting[parcel.topic] = parcel
            self._fill()

    def __contains__(self, topic: str) -> bool:
        return topic in self.waiting or any(topic == t for t, _ in self.in_flight.values())

    def arrived(self, number: int) -> None:
        """The broker has acknowledged this message; send the next ones."""
        self.in_flight.pop(number, None)
        self._fill()

    def drop(self, prefix: str) -> None:
        """Remove the waiting messages below this topic."""
        self.waiting = {t: p for t, p in self.waiting.items() if not t.startswith(prefix)}

    def _fill(self) -> None:
        while self.waiting and sum(size for _, size in self.in_flight.values()) < WINDOW:
            parcel = self.waiting.pop(next(iter(self.waiting)))
            payload = parcel.make()
            if payload is not None:
                self.in_flight[self.hand(parcel, payload)] = (parcel.topic, len(payload))
