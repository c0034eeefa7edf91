"""The log of a service process: format and level by flag and configuration, no secret in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "correct horse battery staple"

CONFIG = f"""
federation = "gates"
device = "gate-7"
state = "state"
[broker]
port = 1
wait = 0
username = "gate-7"
password = "{SECRET}"
[data]
source = "embedded"
[log]
level = "LEVEL"
"""


def said(folder: Path, level: str, *flags: str) -> list[str]:
    """The lines of an agent that finds no broker."""
    path = folder / "agent.toml"
    path.write_text(CONFIG.replace("LEVEL", level))
    path.chmod(0o600)
    names = {"JOURNAL_STREAM", "NOTIFY_SOCKET", "FEDEDGE_LOG_FORMAT", "FEDEDGE_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-m", "fededge", "agent", "--config", str(path), *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name not in names},
    )
    assert done.returncode == 2
    assert SECRET not in done.stderr
    return done.stderr.splitlines()


def test_json_lines_end_with_the_error(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in said(tmp_path, "info", "--log-format", "json")]
    assert lines[0]["event"] == "starting"
    assert lines[-1]["event"] == "failed"
    assert "no broker answers" in lines[-1]["text"]


@pytest.mark.parametrize(("level", "starts"), [("info", True), ("error", False)])
def test_the_configuration_sets_the_level(tmp_path: Path, level: str, starts: bool) -> None:
    lines = said(tmp_path, level)
    assert any("starting: FedEdge" in line for line in lines) == starts
    assert lines[-1].startswith("fededge: mqtt://localhost:1: no broker answers")


def test_a_level_that_is_not_known_is_a_json_line_too(tmp_path: Path) -> None:
    (line,) = said(tmp_path, "loud", "--log-format", "json")
    entry = json.loads(line)
    assert entry["event"] == "failed"
    assert "log.level" in entry["text"]
    assert "'warning'" in entry["text"]
