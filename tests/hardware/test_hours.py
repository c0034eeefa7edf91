"""Windows of hours: weekdays, several of them, and over midnight."""

from __future__ import annotations

from datetime import datetime

import pytest

from fededge.errors import ConfigError
from fededge.hardware.hours import parse_hours

MONDAY = 13  # of July 2026


def at(day: int, clock: str) -> datetime:
    hours, minutes = map(int, clock.split(":"))
    return datetime(2026, 7, MONDAY + day, hours, minutes, 59)


def within(texts: tuple[str, ...], day: int, clock: str) -> bool:
    return any(window.include(at(day, clock)) for window in parse_hours(texts))


@pytest.mark.parametrize(
    ("text", "day", "clock", "inside"),
    [
        ("09:00-17:00", 0, "09:00", True),
        ("09:00-17:00", 0, "16:59", True),
        ("09:00-17:00", 0, "17:00", False),
        ("22:00-06:00", 3, "23:30", True),
        ("22:00-06:00", 3, "05:59", True),
        ("22:00-06:00", 3, "06:00", False),
        ("22:00-06:00", 3, "12:00", False),
        ("Fri 22:00-06:00", 4, "22:00", True),
        ("Fri 22:00-06:00", 5, "05:00", True),
        ("Fri 22:00-06:00", 4, "05:00", False),
        ("Sun 22:00-06:00", 0, "05:00", True),
        ("Sat,Sun 00:00-24:00", 6, "23:59", True),
        ("Sat,Sun 00:00-24:00", 0, "00:00", False),
        ("mon-fri 19:00 - 07:00", 5, "06:30", True),
        ("mon-fri 19:00 - 07:00", 5, "19:30", False),
        ("Sat-Mon 00:00-12:00", 0, "08:00", True),
        ("Sat-Mon 00:00-12:00", 2, "08:00", False),
        ("18:00-24:00", 2, "23:59", True),
        ("18:00-00:00", 2, "23:59", True),
    ],
)
def test_a_window_includes_its_hours_and_no_others(
    text: str, day: int, clock: str, inside: bool
) -> None:
    assert within((text,), day, clock) is inside


def test_one_of_several_windows_is_enough() -> None:
    windows = ("22:00-06:00", "Sat,Sun 00:00-24:00")
    assert within(windows, 0, "23:00")
    assert within(windows, 5, "12:00")
    assert not within(windows, 0, "12:00")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("at night", "'at night' is not a window of hours: write it as '22:00-06:00'"),
        ("22-06", "is not a window of hours"),
        ("22:00-06:00 Sat", "is not a window of hours"),
        ("22:00-22:00", "is empty"),
        ("24:00-06:00", "is empty"),
        ("25:00-06:00", "there is no time 25:00"),
        ("22:00-06:60", "there is no time 06:60"),
        ("Sunday 22:00-06:00", "there is no day 'sunday'; days are Mon, Tue"),
        ("Mon, 22:00-06:00", "there is no day ''"),
    ],
)
def test_a_window_that_makes_no_sense_is_quoted(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_hours((text,))
