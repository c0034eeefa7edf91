"""docs/security.md, run as it stands: its commands make a fleet that connects, trains and signs."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fededge._internal.processes import Child
from fededge.config import AgentConfig, BrokerConfig, load
from fededge.credentials import tls
from tests.mosquitto import free_port, running
from tests.pages import blocks, page
from tests.service_commands import service_command

PAGE = page("security.md")
TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


@pytest.fixture(scope="module")
def made(place: Callable[[str], Path]) -> Path:
    """The folder in which the page's commands ran, on this machine instead of broker.example."""
    folder = place("fleet")
    tools = folder / "bin"
    tools.mkdir()
    fededge = tools / "fededge"
    fededge.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fededge "$@"\n')
    fededge.chmod(0o755)
    script = "".join(blocks(PAGE)).replace("broker.example", "127.0.0.1")
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, env={**os.environ, "PATH": path})
    return folder


def test_the_configuration_that_the_page_shows_is_the_one_that_is_written(made: Path) -> None:
    shown = made / "shown.toml"
    shown.write_text(blocks(PAGE, "toml")[0].replace("broker.example", "127.0.0.1"))
    assert load(shown, AgentConfig, {}) == load(made / "agent.toml", AgentConfig, {})


def test_a_federation_runs_on_what_the_page_makes(made: Path) -> None:
    port = free_port()
    conf = made / "broker" / "mosquitto.conf"
    conf.write_text(conf.read_text().replace("listener 8883", f"listener {port}"))
    children: list[Child] = []
    with running(made / "broker", port):
        for name, more in (("coordinator", "count = 1\nmin_devices = 1\n"), ("agent", "")):
            text = (made / f"{name}.toml").read_text().replace("port = 8883", f"port = {port}")
            text = text.replace("[rounds]\n", f"[rounds]\n{more}")
            text = text.replace('state = "state"', f'state = "state-{name}"')
            text = text.replace('source = "none"', 'source = "embedded"')
            path = made / f"{name}-here.toml"
            path.write_text(text)
            children.append(Child(service_command(name, path), made / f"{name}.log"))
            children[-1].start()
        try:
            deadline = time.monotonic() + 120
            while children[0].exit_code is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert children[0].exit_code == 0, f"{children[0].said(20)}\n{children[1].said(20)}"
            while "update accepted" not in children[1].said(20) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            for child in children:
                child.kill()
    said = (made / "agent.log").read_text()
    assert f"connected to mqtts://127.0.0.1:{port}" in said
    assert "update accepted" in said


def test_the_secrets_are_for_their_owner(made: Path) -> None:
    secret = [*made.rglob("*.key"), *made.rglob("*.password"), made / "with-passwords/passwords"]
    # certificates, those of boxes that enrol and the one they ask with, signing, passwords, hashes
    assert len(secret) == 5 + 2 + 1 + 1 + 3 + 1
    assert [path for path in secret if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("number", [10, 9, 62, 20])
def test_the_sentences_that_the_page_explains_are_said(number: int) -> None:
    error = ssl.SSLCertVerificationError("x")
    error.verify_code, error.verify_message = number, "m"
    said = tls.describe_failure(BrokerConfig(host="10.0.0.2", tls=True), error)
    known = [row.split("`")[1] for row in PAGE.splitlines() if row.startswith("| `")]
    parts = [text.strip("… ").split(" …")[0] for text in known]
    assert any(part in said for part in parts), said


def test_every_test_and_file_that_the_page_names_exists() -> None:
    table = PAGE.split("## Who can do what")[1].split("\n## ")[0]
    source = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", table)
    assert len(named) > 10
    assert [name for name in named if f"def {name}(" not in source] == []
    assert [
        name for name in re.findall(r"`(tests/\S+)`", table) if not (ROOT / name).exists()
    ] == []


def test_every_row_says_what_stops_it_or_that_nothing_does() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and line.count("|") == 7]
    assert len(rows) > 20
    for row in rows[2:]:
        _, _, _, of_open, closed, stops, shown, _ = (cell.strip() for cell in row.split("|"))
        assert of_open
        assert closed
        assert stops.startswith("nothing") or shown or "permissions" in of_open, row
