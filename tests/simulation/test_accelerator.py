"""`fededge simulate --device` on the emulated accelerator, in one process and in two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import accelerator

SETTING = ["--method=fedacd", "--devices=4", "--participants=2", "--rounds=2", "--limit=400"]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    found = accelerator.load()
    if isinstance(found, str):
        pytest.skip(found)


def simulated(folder: Path, *flags: str) -> dict[str, Any]:
    path = folder / f"{'-'.join(flags) or 'cpu'}.json"
    command = [sys.executable, "-m", "fededge", "simulate", *SETTING, "--json", str(path), *flags]
    done = subprocess.run(
        command, env=accelerator.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_a_simulation_on_the_accelerator_learns_what_one_on_the_cpu_learns(tmp_path: Path) -> None:
    cpu = simulated(tmp_path)
    alone = simulated(tmp_path, "--device", "emulated")
    two = simulated(tmp_path, "--device", "emulated", "--workers", "2")
    assert alone["model_sha256"] == two["model_sha256"]
    assert alone["model_sha256"] != cpu["model_sha256"]
    for ours, theirs in zip(alone["rounds"], cpu["rounds"], strict=True):
        for name in ("loss", "v_m", "update_norm", "global_accuracy"):
            assert ours[name] == pytest.approx(theirs[name], rel=0.01, abs=0.01)
