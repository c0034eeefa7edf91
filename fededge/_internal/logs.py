"""Logs: readable lines in a terminal, JSON lines where a service manager collects them.

Much of what is logged quotes the network. Every record is made plain: it is one line, and only the
lines of a traceback follow it, indented. What a device can cause is limited: a few lines a minute.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter

from fededge._internal.plain_text import plain

__all__ = ["RateLimit", "set_up"]

MOST_CHARACTERS = 8000
"""Of a line; a round that asks a hundred devices names them all."""

MOST_TRACED = 200
"""Lines of a traceback."""

WINDOW = 60.0
OTHERS = "other devices"


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time, level = self.formatTime(record, "%H:%M:%S"), record.levelname[:1]
        head = f"{time} {level} {record.name}: {_text(record)}"
        return "\n".join([head, *(f"    {line}" for line in _traced(self, record))])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "part": record.name,
            "text": _text(record),
        }
        if record.exc_info:
            entry["traceback"] = "\n".join(_traced(self, record))
        return json.dumps(entry, ensure_ascii=False)


def _text(record: logging.LogRecord) -> str:
    return plain(record.getMessage(), MOST_CHARACTERS)


def _traced(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """The lines of a traceback; the text of its exception may be anybody's."""
    if not record.exc_info:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    return [plain(line, MOST_CHARACTERS) for line in lines[-MOST_TRACED:]]


def set_up(verbose: bool = False) -> None:
    """Log to standard error; under systemd, which sets JOURNAL_STREAM, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if "JOURNAL_STREAM" in os.environ else _Lines())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


class RateLimit:
    """Lines that devices can cause: the first of each at once, then their number once a minute.

    Args:
        log: where they go.
        first: lines of a device within a minute that are logged as they are.
        devices: those that are counted one by one; any further ones are counted together.
    """

    def __init__(self, log: logging.Logger, first: int, devices: int) -> None:
        self.log = log
        self.first = first
        self.devices = devices
        self._counts: Counter[str] = Counter()
        self._ends = 0.0

    def say(self, level: int, device: str, text: str, now: float) -> None:
        """Log a line about a device, unless there were too many; "" stands for none of them."""
        self.tick(now)
        known = device in self._counts or len(self._counts) < self.devices
        who = device if known else OTHERS
        if not self._counts:
            self._ends = now + WINDOW
        self._counts[who] += 1
        if self._counts[who] <= self.first:
            self.log.log(level, "%s", f"{device}: {text}" if device else text)

    def tick(self, now: float) -> None:
        """At the end of a minute, say how many lines were left out."""
        if not self._counts or now < self._ends:
            return
        counts, self._counts = self._counts, Counter()
        for who, count in counts.items():
            if count > self.first:
                text = f"{count - self.first} more lines within a minute, left out"
                self.log.warning("%s", f"{who}: {text}" if who else text)
