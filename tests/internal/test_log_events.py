"""Every line of the log has a stable name, and every name is in the documents."""

from __future__ import annotations

import re

import pytest

from fededge._internal.log_events import EVENTS, UNNAMED, event_of
from tests.log_lines import ROOT, LoggedLine, logged_lines

LINES = [*dict.fromkeys(logged_lines())]


def documented() -> list[str]:
    _, _, page = (ROOT / "docs" / "logs.md").read_text().partition("\n## ")
    return re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)


def test_the_source_is_read() -> None:
    assert len(LINES) > 60
    assert any("joined with" in line.text for line in LINES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.place)
def test_each_line_that_is_logged_has_a_name(line: LoggedLine) -> None:
    """A new line needs a row in EVENTS of fededge/_internal/log_events.py and in docs/logs.md."""
    text = line.text.replace("%.1f%%", "1.0%")
    assert line.named or event_of(text) != UNNAMED, f"{line.place}: no event for {line.text!r}"


def test_each_name_is_documented_once_and_none_is_made_up() -> None:
    assert sorted(documented()) == sorted([*EVENTS, UNNAMED])


def test_each_name_is_used() -> None:
    begun = {event_of(line.text.replace("%.1f%%", "1.0%")) for line in LINES}
    source = "\n".join(
        path.read_text()
        for folder in ("fededge", "server", "device_agent")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "log_events.py"
    )
    given = {name for name in EVENTS if f'"{name}"' in source}
    # Made by other functions than those that log
    spoken = {
        "access-denied",
        "message-dropped",
        "name-contested",
        "update-dropped",
        "update-settled",
    }
    assert {*EVENTS} == begun - {UNNAMED} | given | spoken
