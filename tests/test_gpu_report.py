"""`make gpu` where there is no GPU, and the parts of its report that run anywhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fededge.hardware import CPU, Probe
from tests import accelerator
from tests.hardware.fakes import FakeTorch, jetson

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu_report.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_report"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing was run: device is 'cuda', but ")
    assert not out.exists()


def test_every_part_names_files_that_exist(script: ModuleType) -> None:
    assert script.device_tests(script.ROOT), "pytest without a file would run all tests"
    made = [*script.parts("cpu", compiled=True)]
    assert [part.title for part in made] == [
        "doctor",
        "tests of the CUDA kernels",
        "tests of the methods on the device",
        "ops",
        "steps",
        "steps in half precision",
    ]
    assert not (made[0].folder / "fededge").exists(), "it would hide the installed package"
    named = [word for part in made for word in part.command if word.endswith(".py")]
    assert [word for word in named if not (script.ROOT / word).exists()] == []
    assert "--compile" in made[4].command
    assert "--compile" not in [*script.parts("cpu", compiled=False)][4].command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quick"),
    [
        ("ops", ("--ops", "sgd_step_", "fedacd", "--batches", "10", "--classes", "10")),
        ("steps in half precision", ("--models", "lenet", "--methods", "fedacd")),
    ],
)
def test_a_benchmark_of_the_report_runs_on_a_device(
    script: ModuleType, name: str, quick: tuple[str, ...]
) -> None:
    """The command of the report, with fewer cases, on the emulated accelerator."""
    if isinstance(reason := accelerator.load(), str):
        pytest.skip(reason)
    (part,) = (part for part in script.parts("emulated", compiled=False) if part.title == name)
    command = (*part.command, *quick, "--rounds", "1")
    done = script.run(script.Part(name, command, accelerator.environment()))
    assert done.code == 0, done.output
    assert "fedacd" in done.output


def test_tests_that_read_the_variable_are_found(script: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "methods"
    folder.mkdir(parents=True)
    (folder / "test_any.py").write_text(f"os.environ[{script.VARIABLE!r}]")
    (folder / "test_cpu.py").write_text("")
    assert script.device_tests(tmp_path) == ["tests/methods/test_any.py"]


def test_a_part_that_fails_is_in_the_report_with_its_output(script: ModuleType) -> None:
    good = script.Part(
        "good", (sys.executable, "-c", "import os; print(os.environ['A'])"), {"A": "b"}
    )
    bad = script.Part("bad", (sys.executable, "-c", "import sys; print('```'); sys.exit('why')"))
    outcomes = [script.run(good), script.run(bad)]
    assert [(done.code, done.output) for done in outcomes] == [(0, "b\n"), (1, "```\nwhy\n")]
    text = script.report({"torch": "2.9"}, outcomes)
    assert text.startswith("# FedEdge on a GPU\n\n- torch: 2.9\n\n## good\n\n`A=b python -c ")
    assert re.search(r"ended well after \d+ s", text)
    assert re.search(r"failed with exit code 1 after \d+ s\.\n\n```\n'''\nwhy\n```\n", text)


def test_the_facts_name_the_board(script: ModuleType, tmp_path: Path) -> None:
    facts = script.machine_facts(CPU, jetson(tmp_path, FakeTorch()))
    assert facts["board"] == "NVIDIA Jetson Orin Nano Developer Kit"
    assert script.machine_facts(CPU, Probe())["cores"].isdigit()
