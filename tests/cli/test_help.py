"""`--help` of every command: it says something, and loads nothing heavy to say it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fededge.cli.parser import COMMANDS

HEAVY = {
    *("torch", "torchvision", "onnx", "onnxruntime", "onnxscript", "numpy", "matplotlib", "PIL"),
    *("cryptography", "zstandard", "amqtt", "fededge_server", "fededge_agent"),
}
APPS = {"numpy"}
"""`predict` and `serve-model` may load what every app has."""

PROGRAM = """
import sys
from fededge.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def loaded_by(*arguments: str) -> tuple[set[str], str]:
    """The packages that a command has loaded when it ends, and what it printed."""
    program = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return set(done.stderr.split()), done.stdout


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_loads_neither_torch_nor_another_heavy_package(command: str) -> None:
    packages, text = loaded_by(*command.split(), "--help")
    assert "usage: fededge" in text
    allowed = APPS if command in ("predict", "serve-model") else set()
    assert packages & HEAVY <= allowed


def test_a_wrong_flag_is_refused_before_anything_heavy_is_loaded() -> None:
    program = [sys.executable, "-c", PROGRAM, "simulate", "--roundz", "2"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    mistake, packages = done.stderr.splitlines()
    assert done.returncode == 2
    assert "--roundz" in mistake
    assert not set(packages.split()) & HEAVY
