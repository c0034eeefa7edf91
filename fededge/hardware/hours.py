"""Hours of the week, in local time: `22:00-06:00`, `Mon-Fri 19:00-07:00`, `Sat,Sun 00:00-24:00`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from fededge.errors import ConfigError

__all__ = ["Hours", "parse_hours"]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MIDNIGHT = 24 * 60
SHAPE = re.compile(r"(?:(?P<days>[A-Za-z,-]+) +)?(?P<start>\d\d:\d\d) *- *(?P<end>\d\d:\d\d)")
EXAMPLE = "write it as '22:00-06:00' or 'Sat,Sun 00:00-24:00'"


@dataclass(frozen=True)
class Hours:
    """One window. It begins on each of `days` (0 is Monday), and may end on the day after.

    `start` and `end` are minutes since midnight; an `end` that is not later is of the next day.
    """

    days: frozenset[int]
    start: int
    end: int

    def include(self, moment: datetime) -> bool:
        minute, today = 60 * moment.hour + moment.minute, moment.weekday()
        if self.start < self.end:
            return today in self.days and self.start <= minute < self.end
        began_today = today in self.days and minute >= self.start
        return began_today or ((today - 1) % 7 in self.days and minute < self.end)


def parse_hours(texts: Iterable[str]) -> tuple[Hours, ...]:
    """The windows that the configuration names; ConfigError quotes one that makes no sense."""
    return tuple(map(_parsed, texts))


def _parsed(text: str) -> Hours:
    found = SHAPE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"'{text}' is not a window of hours: {EXAMPLE}")
    start, end = _minutes(found["start"], text), _minutes(found["end"], text)
    if start in (end, MIDNIGHT):
        raise ConfigError(f"'{text}' is empty: {EXAMPLE}")
    return Hours(_days(found["days"] or "Mon-Sun", text), start, end)


def _minutes(clock: str, text: str) -> int:
    hours, minutes = map(int, clock.split(":"))
    if minutes > 59 or 60 * hours + minutes > MIDNIGHT:
        raise ConfigError(f"'{text}': there is no time {clock}; hours go from 00:00 to 24:00")
    return 60 * hours + minutes


def _days(names: str, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in names.lower().split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ConfigError(f"'{text}': there is no day '{part}'; days are Mon, Tue, … Sun")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found.update(day % 7 for day in range(begin, end + 1 + 7 * (end < begin)))
    return frozenset(found)
