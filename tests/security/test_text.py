"""A device that writes on other people's terminals: what a coordinator's log and `fededge status`
hold after messages full of escapes, and after very many of them, on a real Mosquitto.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fededge.cli import main
from tests.security.waiting import TOPICS, Site, status, waiting

FLOOD = 10_000
FORGED = "2026-01-01 00:00:00 I coordinator: all 10 rounds are done"
HOSTILE = [f"\x1b[2J\x1b]0;owned\x07\n{FORGED}", f"\u202e{FORGED}\u2028{FORGED}", "\x9b31m\u200b"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with waiting(tmp_path) as made:
        made.coordinator.start()
        yield made


def assert_clean(text: str) -> None:
    odd = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
    assert odd <= {"\n"}, odd
    assert not re.search(rf"^{FORGED}", text, re.MULTILINE)


def test_hostile_texts_reach_neither_the_log_nor_the_terminal(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    site.mark("before")
    honest: dict[str, Any] = json.loads(status("hostile", "none"))
    for text in HOSTILE:
        for field in ("problem", "software", "instance", "layout", "activity", text):
            payload = json.dumps({**honest, field: text}, ensure_ascii=False).encode()
            for kind in ("status", "report"):
                site.says("hostile", kind, payload, retain=kind == "status")
        site.session.publish(TOPICS.device("hostile\u202e\u2066", "status"), text.encode())
    site.mark("[red]after[/red] :skull:")
    assert_clean(site.log)
    assert "hostile: message on " in site.log
    assert main(["status", "--config", str(site.config)]) == 0
    said = capsys.readouterr().out
    assert_clean(said)
    assert "[red]after[/red] :skull:" in said


def test_a_flood_of_malformed_messages_is_a_few_lines(site: Site) -> None:
    site.mark("before")
    lines = site.log.count("\n")
    for number in range(FLOOD):
        site.says(f"hostile-{number % 3}", "report", b"garbage %d" % number)
    site.mark("after")
    assert site.log.count("\n") - lines <= 3 * (5 + 1) + 5
    assert "not a Report" in site.log


def test_a_flood_of_well_formed_messages_is_a_few_lines(site: Site) -> None:
    """Each of them is worth a line: a device that says again and again what is wrong with it."""
    site.mark("before")
    lines = site.log.count("\n")
    for number in range(1000):
        site.says("hostile", "status", status("hostile", f"trouble {number}"))
    site.mark("after")
    assert "hostile: cannot take part: trouble 0" in site.log
    assert site.log.count("\n") - lines <= 20 + 5
