"""Chunks on their way out: a few at a time, so that a slow link stays open for what is small.

A message waits here as a way to make it, not as bytes. Each topic is in the box at most once:
what is asked for again while it waits or travels goes out once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Outbox", "Parcel"]

WINDOW = 2 * 1024 * 1024
"""Bytes that may be on their way; the next message follows when one has arrived."""


class Parcel(NamedTuple):
    """A message to be made when its turn has come; none is sent if `make` gives None."""

    topic: str
    make: Callable[[], bytes | None]
    retain: bool = False
    expiry: int | None = None


@dataclass
class Outbox:
    """`hand` gives a message to the client, and returns the number under which it travels."""

    hand: Callable[[Parcel, bytes], int]
    waiting: dict[str, Parcel] = field(default_factory=dict)
    travelling: dict[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.travelling

    def put(self, parcel: Parcel) -> None:
        if parcel.topic not in self:
            self.waiting[parcel.topic] = parcel
            self._fill()

    def __contains__(self, topic: str) -> bool:
        return topic in self.waiting or any(topic == t for t, _ in self.travelling.values())

    def arrived(self, number: int) -> None:
        """The broker has this one."""
        self.travelling.pop(number, None)
        self._fill()

    def drop(self, prefix: str) -> None:
        """What waits below this topic is not wanted any more."""
        self.waiting = {t: p for t, p in self.waiting.items() if not t.startswith(prefix)}

    def _fill(self) -> None:
        while self.waiting and sum(size for _, size in self.travelling.values()) < WINDOW:
            parcel = self.waiting.pop(next(iter(self.waiting)))
            payload = parcel.make()
            if payload is not None:
                self.travelling[self.hand(parcel, payload)] = (parcel.topic, len(payload))
