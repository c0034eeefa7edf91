"""Denials of the broker's access list, told by the reason codes of MQTT 5.

MQTT 3.1.1 has none for a message: there the broker drops it silently.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from paho.mqtt.reasoncodes import ReasonCode

from fededge.transport.events import Denied

__all__ = ["Denials"]


class Denials:
    """Remembers the topics of packets that are on their way, and tells of those that are denied.

    The answer may be there before the packet's number is known.
    """

    def __init__(self, tell: Callable[[Denied], None]) -> None:
        self.tell = tell
        self._topics: dict[int, tuple[str, ...]] = {}
        self._early: dict[int, tuple[str, Sequence[ReasonCode]]] = {}
        self._lock = threading.Lock()

    def sent(self, number: int | None, *topics: str) -> None:
        """A packet with this number was handed to paho."""
        if number is None:
            return
        with self._lock:
            early = self._early.pop(number, None)
            if early is None:
                self._topics[number] = topics
        if early is not None:
            self._compare(topics, *early)

    def published(self, number: int, code: ReasonCode) -> None:
        self._answered(number, "publish", [code])

    def subscribed(self, number: int, codes: Sequence[ReasonCode]) -> None:
        self._answered(number, "subscribe to", codes)

    def _answered(self, number: int, action: str, codes: Sequence[ReasonCode]) -> None:
        with self._lock:
            topics = self._topics.pop(number, None)
            if topics is None and any(code.is_failure for code in codes):
                self._early[number] = action, codes
        self._compare(topics or (), action, codes)

    def _compare(self, topics: tuple[str, ...], action: str, codes: Sequence[ReasonCode]) -> None:
        for topic, code in zip(topics, codes, strict=False):
            if code.is_failure:
                self.tell(Denied(action, topic, str(code)))
