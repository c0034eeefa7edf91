"""How many models the services hold at once: a bound that does not grow with the fleet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.footprint import FORGET, Peaks

pytestmark = pytest.mark.skipif(
    not FORGET.exists(), reason="only Linux tells the peak of a single step"
)

ROOT = Path(__file__).parent.parent
MARGIN = 0.6
"""Of 68 MB: chunks, activations, and what torch sets up when it first trains."""


def peaks_of(service: str) -> Peaks:
    """In a process of its own: in ours, other tests have left free memory behind."""
    program = [sys.executable, "-m", "tests.footprint", service]
    found = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    peaks: Peaks = json.loads(found.stdout)
    return peaks


def test_an_agent_holds_three_models_beside_the_one_in_training() -> None:
    """What it received, what it trained, and the bytes of that; while it comes and goes, less."""
    peaks = peaks_of("agent")
    assert peaks["fetch"] < 1 + MARGIN
    assert 2 < peaks["train"] < 3 + MARGIN
    assert 1 < peaks["send"] < 1 + MARGIN


def test_a_coordinator_holds_three_models_beside_the_current_one() -> None:
    """A mean in double precision, and one update, whatever the number of updates."""
    peaks = peaks_of("coordinator")
    assert peaks["check"] < 1 + MARGIN
    assert 2 < peaks["merge"] < 3 + MARGIN
    assert 1 < peaks["publish"] < 1 + MARGIN
