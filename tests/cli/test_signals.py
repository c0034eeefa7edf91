"""Ctrl-C and SIGTERM at any instant end a command without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MOMENTS = (0.0, 0.05, 0.3, 3.0, 6.0)
"""Seconds after the start: while modules are imported, while devices train."""

FIRST = " argparse\n"
"""The end of the line that tells of our first import; before it, Python itself is starting."""

SIMULATE = ("simulate", "--rounds", "50", "--workers", "2", "--limit", "600", "--devices", "4")


def ended_by(number: signal.Signals, seconds: float, folder: Path) -> tuple[int, str]:
    """The return code and the output of a simulation that is signalled after so many seconds."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "fededge", *SIMULATE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stderr is not None
    assert any(line.endswith(FIRST) for line in process.stderr)
    time.sleep(seconds)
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.slow
@pytest.mark.parametrize("seconds", MOMENTS)
def test_ctrl_c_ends_a_command_without_a_traceback(seconds: float, tmp_path: Path) -> None:
    code, output = ended_by(signal.SIGINT, seconds, tmp_path)
    assert "Traceback" not in output
    assert code in (130, -signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", MOMENTS)
def test_sigterm_ends_a_command_without_a_traceback(seconds: float, tmp_path: Path) -> None:
    code, output = ended_by(signal.SIGTERM, seconds, tmp_path)
    assert "Traceback" not in output
    assert code == -signal.SIGTERM
