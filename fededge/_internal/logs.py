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
from datetime import datetime, timezone

from fededge._internal.log_events import event_of
from fededge._internal.plain_text import plain

__all__ = ["FORM_VARIABLE", "RateLimit", "last_line", "set_up"]

MAX_CHARACTERS = 8000
"""Longest line: a round that invites a hundred devices names them all."""

MAX_TRACEBACK = 200
"""Longest traceback, in lines."""

LEVEL_VARIABLE, FORM_VARIABLE = "FEDEDGE_LOG_LEVEL", "FEDEDGE_LOG_FORMAT"

WINDOW = 60.0
OTHERS = "other devices"


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time, level = self.formatTime(record, "%Y-%m-%d %H:%M:%S"), record.levelname[:1]
        head = f"{time} {level} {record.name}: {_text(record)}"
        return "\n".join([head, *(f"    {line}" for line in _traceback(self, record))])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = _text(record)
        entry = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "part": record.name,
            "event": getattr(record, "event", "") or event_of(text),
            "text": text,
        }
        if device := getattr(record, "device", ""):
            entry["device"] = plain(device, MAX_CHARACTERS)
        if record.exc_info:
            entry["traceback"] = "\n".join(_traceback(self, record))
        return json.dumps(entry, ensure_ascii=False)


def _timestamp(seconds: float) -> str:
    """RFC 3339, in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _text(record: logging.LogRecord) -> str:
    return plain(record.getMessage(), MAX_CHARACTERS)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """The lines of a traceback, escaped, because the exception may quote the network."""
    if not record.exc_info:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    return [plain(line, MAX_CHARACTERS) for line in lines[-MAX_TRACEBACK:]]


def set_up(level: str = "", form: str = "") -> None:
    """Log to standard error. Without arguments, as the parent process logs.

    Args:
        level: "debug", "info", "warning" or "error".
        form: "text", "json", or "auto": JSON if standard error is systemd's journal.
    """
    level = level or os.environ.get(LEVEL_VARIABLE, "info")
    form = form or os.environ.get(FORM_VARIABLE, "auto")
    os.environ.update({LEVEL_VARIABLE: level, FORM_VARIABLE: form})  # for processes of our own
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if _wants_json(form) else _Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def last_line(text: str) -> str:
    """The sentence that a command ends with; a JSON line if it is a service that logs so."""
    form = os.environ.get(FORM_VARIABLE, "text")
    if not _wants_json(form):
        return f"fededge: {text}"
    record = logging.LogRecord("service", logging.ERROR, "", 0, "%s", (text,), None)
    record.event = "failed"
    return _Json().format(record)


def _wants_json(form: str) -> bool:
    return form == "json" or (form == "auto" and _in_journal())


def _in_journal() -> bool:
    """True if standard error is the journal; a terminal may have inherited the variable alone."""
    try:
        about = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or no file
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}"


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
            about = {"event": event_of(text), "device": device}
            self.log.log(level, "%s", f"{device}: {text}" if device else text, extra=about)

    def tick(self, now: float) -> None:
        """Log, at the end of a minute, how many lines were left out."""
        if not self._counts or now < self._ends:
            return
        counts, self._counts = self._counts, Counter()
        for who, count in counts.items():
            if count > self.first:
                text = f"{count - self.first} more lines within a minute, left out"
                about = {"event": "lines-left-out", "device": who}
                self.log.warning("%s", f"{who}: {text}" if who else text, extra=about)
