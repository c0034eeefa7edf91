"""Logs that quote the network: no log injection, and a rate limit per device."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import unicodedata
from pathlib import Path

import pytest

from fededge._internal import logs
from fededge._internal.log_events import event_of
from fededge._internal.logs import RateLimit

HOSTILE = "\x1b[2J\u202e\u2028\x9b1m\r\n2026-01-01 12:00:00 I coordinator: all 10 rounds are done"
FORGED = re.compile(r"^\S+ \S+ I coordinator: all 10 rounds", re.MULTILINE)


class Log:
    """A logger with the handler that `set_up` makes."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.stream = io.StringIO()
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(formatter)
        self.logger = logging.Logger("coordinator", logging.DEBUG)
        self.logger.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().split("\n")[:-1]


def formatter(form: str, level: str = "info") -> logging.Formatter:
    """The formatter that `set_up` chooses."""
    root = logging.getLogger()
    before, was = root.handlers[:], root.level
    root.handlers.clear()
    logs.set_up(level, form)
    made = root.handlers[0].formatter
    root.handlers[:] = before
    root.setLevel(was)
    assert made is not None
    return made


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`set_up` leaves its choice to the processes of a service."""
    for name in ("JOURNAL_STREAM", logs.FORM_VARIABLE, logs.LEVEL_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Log:
    return Log(formatter(request.param))


@pytest.mark.parametrize(("journal", "as_json"), [("same", True), ("8:1234", False), ("", False)])
def test_it_is_json_if_standard_error_is_the_journal(
    journal: str, as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A terminal inherits the variable of the session that it was started in."""
    with (tmp_path / "stderr").open("w") as stream:
        about = os.fstat(stream.fileno())
        same = f"{about.st_dev}:{about.st_ino}"
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("JOURNAL_STREAM", same if journal == "same" else journal)
        log = Log(formatter("auto"))
    log.logger.info("left")
    assert log.lines[0].startswith("{") == as_json


def test_a_json_line_has_date_level_part_and_event() -> None:
    log = Log(formatter("json"))
    log.logger.warning("connection to %s lost (%s)", "mqtt://a:1", "keep alive")
    entry = json.loads(log.lines[0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry.pop("time"))
    text = "connection to mqtt://a:1 lost (keep alive)"
    expected = {"level": "warning", "part": "coordinator", "event": "connection-lost"}
    assert entry == {**expected, "text": text}


def test_a_text_line_has_the_date() -> None:
    log = Log(formatter("text"))
    log.logger.info("left")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d I coordinator: left", log.lines[0])


def test_a_line_about_a_device_names_it_apart() -> None:
    log = Log(formatter("json"))
    RateLimit(log.logger, 1, 1).say(logging.INFO, "gate-7", "joined with 3 examples", 0.0)
    entry = json.loads(log.lines[0])
    assert (entry["event"], entry["device"]) == ("device-joined", "gate-7")
    assert entry["text"] == "gate-7: joined with 3 examples"


def test_a_quoted_line_does_not_change_the_event() -> None:
    assert event_of("message on a/b dropped: all 10 rounds are done") == "message-dropped"
    assert event_of("rests: all 10 rounds are done") == "device-rests"


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_last_line_of_a_service_has_the_format_of_its_log(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(logs.FORM_VARIABLE, form)
    said = logs.last_line("there is no such file")
    if form == "text":
        assert said == "fededge: there is no such file"
    else:
        assert json.loads(said)["event"] == "failed"


def assert_clean(log: Log) -> None:
    said = log.stream.getvalue()
    odd = {c for c in said if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}
    assert odd <= {"\n"}
    assert not FORGED.search(said)


def test_a_message_and_its_arguments_are_one_line(log: Log) -> None:
    log.logger.warning("%s: %s", HOSTILE, HOSTILE)
    log.logger.warning(HOSTILE)
    assert_clean(log)
    assert len(log.lines) == 2
    assert r"\x1b[2J" in log.lines[0].replace(r"\\", "\\")


def test_the_text_of_an_exception_cannot_begin_a_line(log: Log) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.logger.exception("it failed")
    assert_clean(log)
    assert "ValueError" in log.stream.getvalue()
    if log.lines[0].startswith("{"):
        assert len(log.lines) == 1
        assert "Traceback" in json.loads(log.lines[0])["traceback"]
    else:
        assert all(line.startswith("    ") for line in log.lines[1:])


def test_a_line_is_bounded(log: Log) -> None:
    log.logger.warning("%s", "x" * 10_000_000)
    try:
        raise ValueError("y\n" * 100_000)
    except ValueError:
        log.logger.exception("it failed")
    assert len(log.stream.getvalue()) < 20_000


class Limited(Log):
    def __init__(self, first: int, devices: int) -> None:
        super().__init__(logging.Formatter("%(levelname)s %(message)s"))
        self.limit = RateLimit(self.logger, first, devices)

    def says(self, device: str, text: str, now: float) -> None:
        self.limit.say(logging.INFO, device, text, now)


def test_the_first_lines_come_at_once_and_the_rest_is_counted_once_a_minute() -> None:
    log = Limited(first=2, devices=10)
    for number in range(10_000):
        log.says("a", f"line {number}", now=1000.0 + number / 1000)
    log.says("b", "mine", now=1012.0)
    assert log.lines == ["INFO a: line 0", "INFO a: line 1", "INFO b: mine"]
    log.limit.tick(1059.9)
    assert len(log.lines) == 3
    log.limit.tick(1060.0)
    assert log.lines[3:] == ["WARNING a: 9998 more lines within a minute, left out"]
    log.limit.tick(2000.0)
    log.says("a", "again", now=2000.0)
    assert log.lines[4:] == ["INFO a: again"]


def test_a_flood_that_goes_on_is_so_many_lines_a_minute() -> None:
    log = Limited(first=2, devices=10)
    for second in range(600):
        for number in range(10):
            log.says("a", f"line {number}", now=float(second))
    assert len(log.lines) == 10 * 2 + 9


def test_devices_beyond_the_bound_are_counted_together() -> None:
    log = Limited(first=1, devices=3)
    for number in range(10_000):
        log.says(f"device-{number}", "hello", now=0.0)
    assert len(log.limit._counts) == 4
    log.limit.tick(60.0)
    assert log.lines == [
        *(f"INFO device-{number}: hello" for number in range(4)),
        "WARNING other devices: 9996 more lines within a minute, left out",
    ]


def test_lines_of_no_device_have_no_name() -> None:
    log = Limited(first=1, devices=1)
    for _ in range(3):
        log.says("", "hello", now=0.0)
    log.limit.tick(60.0)
    assert log.lines == ["INFO hello", "WARNING 2 more lines within a minute, left out"]
