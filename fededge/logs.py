"""Logs: readable lines in a terminal, JSON lines where a service manager collects them."""

from __future__ import annotations

import json
import logging
import os
import sys

__all__ = ["set_up"]


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "part": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up(verbose: bool = False) -> None:
    """Log to standard error; under systemd, which sets JOURNAL_STREAM, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(_Json() if "JOURNAL_STREAM" in os.environ else plain)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
