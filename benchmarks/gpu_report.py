"""Everything that needs a real GPU, in one run: tests, benchmarks, and one report to send in.

python benchmarks/gpu_report.py [--device cuda] [--out build/gpu-report/report.md]

The report has the machine's facts, the output of `fededge doctor`, the tests of the CUDA kernels,
the tests of every method on the device, and the benchmarks of ops and of a step with their ratios
to eager and, where triton is installed, to compiled torch. It is written after every part, so that
an interrupted run leaves a report of what ran.

The exit code is 0 if every part ended well, 1 if one failed, and 2 if torch cannot use the device:
then one sentence says why, and nothing runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fededge import __version__
from fededge.errors import ConfigError
from fededge.hardware import Hardware, Probe, choose

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "FEDEDGE_TEST_DEVICE"
"""Tests that run on any device read its name from here."""

TIMEOUT = 7200.0
"""Seconds after which a part is killed."""

OF_METHODS = ("fedavg", "fedacd", "fedala", "fedbalance", "map", "lfd")


@dataclass(frozen=True)
class Part:
    """A command whose output goes into the report."""

    title: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT

    @property
    def shown(self) -> str:
        """The command as a user would type it."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join([*words, "python", *map(shlex.quote, self.command[1:])])


@dataclass(frozen=True)
class Outcome:
    """The end of a part."""

    part: Part
    code: int
    seconds: float
    output: str


def machine_facts(hardware: Hardware, probe: Probe) -> dict[str, str]:
    """The box, its torch and its GPU."""
    facts = {
        "FedEdge": __version__,
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "board": probe.jetson or "not a Jetson",
        "cores": str(probe.cores),
        "NVIDIA's driver": probe.driver or "none",
        "torch": f"{torch.__version__}, CUDA {probe.cuda_version or 'none'}",
        "device": hardware.reason,
    }
    if hardware.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(hardware.device)
        facts["GPU"] = (
            f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
            f"{properties.total_memory / 2**30:.1f} GB, {properties.multi_processor_count} SMs"
        )
    return facts


def parts(device: str, compiled: bool) -> Iterator[Part]:
    """The parts of the report, in order."""
    python = sys.executable
    # Not in the checkout: Python would import its package, which has no compiled modules.
    doctor = (python, "-m", "fededge", "doctor")
    yield Part("doctor", doctor, {"COLUMNS": "160"}, ROOT / "benchmarks")
    tests = ("-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider")
    yield Part("tests of the CUDA kernels", (python, *tests, "tests/ops/test_cuda.py"))
    yield Part(
        "tests of the methods on the device",
        (python, *tests, *device_tests(ROOT)),
        {VARIABLE: device},
    )
    flags = ("--device", device)
    compiling = ("--compile", "fedacd", "lfd", "distillation") if compiled else ("--no-compile",)
    sizes = ("--batches", "10", "64", "1024", "--classes", "10", "100", "1000")
    yield Part("ops", (python, "benchmarks/ops.py", *flags, *sizes, *compiling))
    step = ("benchmarks/step.py", *flags, "--rounds", "15", "--methods")
    more = ("--compile",) if compiled else ()
    yield Part("steps", (python, *step, *OF_METHODS, *more))
    half = ("--precision", "bfloat16" if _has_bfloat16(device) else "float16")
    yield Part("steps in half precision", (python, *step, "fedavg", "fedacd", *half, *more))


def _has_bfloat16(device: str) -> bool:
    return not device.startswith("cuda") or torch.cuda.get_device_capability(device)[0] >= 8


def device_tests(root: Path) -> list[str]:
    """The test files that run on the device which the variable names."""
    found = sorted((root / "tests").rglob("test_*.py"))
    return [str(path.relative_to(root)) for path in found if VARIABLE in path.read_text("utf-8")]


def run(part: Part) -> Outcome:
    """Run a part; its output is also shown while it runs."""
    began, lines = time.monotonic(), list[str]()
    with subprocess.Popen(
        part.command,
        cwd=part.folder,
        env={**os.environ, **part.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        limit = threading.Timer(TIMEOUT, process.kill)
        limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        limit.cancel()
    return Outcome(part, process.returncode, time.monotonic() - began, "".join(lines))


def report(facts: Mapping[str, str], outcomes: Iterable[Outcome]) -> str:
    """The report as Markdown."""
    lines = ["# FedEdge on a GPU", "", *(f"- {name}: {value}" for name, value in facts.items())]
    for done in outcomes:
        end = "ended well" if done.code == 0 else f"failed with exit code {done.code}"
        lines += ["", f"## {done.part.title}", ""]
        lines += [f"`{done.part.shown}` {end} after {done.seconds:.0f} s.", ""]
        lines += ["```", done.output.rstrip().replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-report/report.md")
    args = parser.parse_args()
    try:
        hardware = choose(args.device)
    except ConfigError as error:
        print(f"nothing was run: {error}", file=sys.stderr)
        return error.exit_code
    facts = machine_facts(hardware, Probe())
    compiled = importlib.util.find_spec("triton") is not None
    args.out.parent.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for part in parts(hardware.device, compiled):
        print(f"\n== {part.title}", flush=True)
        outcomes.append(run(part))
        args.out.write_text(report(facts, outcomes), encoding="utf-8")
    failed = [done.part.title for done in outcomes if done.code]
    print(f"\nthe report is in {args.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
