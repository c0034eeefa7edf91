"""Logging: readable lines in a terminal, JSON lines under systemd.

Many log lines quote text from the network. Every record is escaped to one line; only a traceback
adds lines, indented. Lines that a device can cause are rate-limited per minute.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter

from fededge._internal.plain_text import plain

__all__ = ["RateLimit", "set_up"]

MAX_CHARACTERS = 8000
"""Longest line: a round that invites a hundred devices names them all."""

MAX_TRACEBACK = 200
"""Longest traceback, in lines."""

WINDOW = 60.0
OTHERS = "other devices"


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time, level = self.formatTime(record, "%H:%M:%S"), record.levelname[:1]
        head = f"{time} {level} {record.name}: {_text(record)}"
        return "\n".join([head, *(f"    {line}" for line in _traceback(self, record))])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "part": record.name,
            "text": _text(record),
        }
        if record.exc_info:
            entry["traceback"] = "\n".join(_traceback(self, record))
        return json.dumps(entry, ensure_ascii=False)


def _text(record: logging.LogRecord) -> str:
    return plain(record.getMessage(), MAX_CHARACTERS)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """The lines of a traceback, escaped, because the exception may quote the network."""
    if not record.exc_info:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    return [plain(line, MAX_CHARACTERS) for line in lines[-MAX_TRACEBACK:]]


def set_up(verbose: bool = False) -> None:
    """Log to standard error; as JSON under systemd, which sets JOURNAL_STREAM."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if "JOURNAL_STREAM" in os.environ else _Lines())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


class RateLimit:
    """Rate limit for lines that devices can cause: the first ones at once, the rest as a count.

    Args:
        log: the logger that gets the lines.
        first: lines per device and minute that are logged as they are.
        devices: devices that are counted one by one; all others share one count.
    """

    def __init__(self, log: logging.Logger, first: int, devices: int) -> None:
        self.log = log
        self.first = first
        self.devices = devices
        self._counts: Counter[str] = Counter()
        self._ends = 0.0

    def say(self, level: int, device: str, text: str, now: float) -> None:
        """Log a line about a device ("" for no device), unless its minute is used up."""
        self.tick(now)
        known = device in self._counts or len(self._counts) < self.devices
        who = device if known else OTHERS
        if not self._counts:
            self._ends = now + WINDOW
        self._counts[who] += 1
        if self._counts[who] <= self.first:
            self.log.log(level, "%s", f"{device}: {text}" if device else text)

    def tick(self, now: float) -> None:
        """At the end of a minute, log how many lines were left out."""
        if not self._counts or now < self._ends:
            return
        counts, self._counts = self._counts, Counter()
        for who, count in counts.items():
            if count > self.first:
                text = f"{count - self.first} more lines within a minute, left out"
                self.log.warning("%s", f"{who}: {text}" if who else text)
