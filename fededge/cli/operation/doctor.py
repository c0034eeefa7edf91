"""`fededge doctor`: the features of this installation, its hardware, and what is missing."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fededge import __version__
from fededge.config import AgentConfig, HardwareConfig, load
from fededge.errors import ConfigError
from fededge.hardware import Probe, examine, kernels_finding

__all__ = ["add_to"]

TEXT = """\
Show on which hardware a training would run and why, what keeps it from better hardware and the fix,
which implementation of the kernels runs, and which optional packages are installed.

examples:
  fededge doctor
  fededge doctor --config agent.toml
  fededge doctor --json
"""

PROBE = Probe()

ONNX_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
"""Distributions of ONNX Runtime, for the CPU and for a GPU."""

OPTIONAL = {
    "torchvision": "CIFAR and MNIST in torchvision's layout (pip install fededge[vision])",
    "PIL": "image folders (pip install fededge[vision])",
    "matplotlib": "plots (pip install fededge[plot])",
    "amqtt": "a broker without Mosquitto (pip install fededge[broker])",
}


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument(
        "--config", type=Path, metavar="TOML", help="with the [hardware] of this agent"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    wish = (
        HardwareConfig() if options.config is None else load(options.config, AgentConfig).hardware
    )
    facts = gather(wish, PROBE)
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    Console(markup=False).print(table)


def gather(wish: HardwareConfig, probe: Probe) -> dict[str, str]:
    """Return each part and its condition, in words."""
    import torch

    from fededge import ops
    from fededge.federated import sums

    kernels = ops.facts()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    facts = {
        "fededge": f"{__version__} on Python {platform.python_version()}, {platform.machine()}",
        "torch": f"{torch.__version__}, {gpu}, {torch.get_num_threads()} threads",
        **_hardware(wish, kernels["cuda"], probe),
        "kernels": f"{kernels['implementation']}: {kernels['reason']}",
        "kernels on a GPU": _on_gpu(kernels["cuda"]),
        "the coordinator's sums": sums.implementation(),
        "onnxruntime": _onnxruntime(),
        "mosquitto": _mosquitto(),
    }
    return facts | {module: _optional(module, purpose) for module, purpose in OPTIONAL.items()}


def _hardware(wish: HardwareConfig, kernels: Mapping[str, Any], probe: Probe) -> dict[str, str]:
    """Return the hardware of a training, and each finding with its fix."""
    try:
        chosen = examine(wish.device, wish.threads, wish.precision, wish.memory_format, probe=probe)
    except ConfigError as error:
        return {"training": f"cannot start: {error}"}
    used, findings = chosen.hardware, list(chosen.findings)
    kind, _, index = used.device.partition(":")
    if kind == "cuda":
        slow = kernels_finding(probe, kernels["build"], kernels["reason"], int(index))
        findings += [slow] if slow else []
    automatic = f"1 to {probe.cores}, by the network" if used.on_cpu else "1"
    threads = wish.threads or automatic
    how = f"{used.precision.value}, {used.memory_format.value}, CPU threads: {threads}"
    rows = {f"finding {number}": str(each) for number, each in enumerate(findings, 1)}
    return {"training": f"{used.reason} ({how})", **rows}


def _on_gpu(kernels: Mapping[str, Any]) -> str:
    build = kernels["build"]
    built = f"; built with CUDA {build['cuda']} for {build['architectures']}" if build else ""
    return f"{kernels['implementation']}: {kernels['reason']}{built}"


def _onnxruntime() -> str:
    """Return each distribution of ONNX Runtime that is installed, with its version."""
    found: list[str] = []
    for name in ONNX_RUNTIMES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found) or "not installed: apps get no model (pip install onnxruntime)"


def _mosquitto() -> str:
    found = shutil.which("mosquitto", path="/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin")
    return found or "not installed: the demo uses the broker in Python (apt install mosquitto)"


def _optional(module: str, purpose: str) -> str:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"missing, needed for {purpose}: {error}"
    except Exception as error:  # noqa: BLE001 - a broken torchvision fails with RuntimeError and others
        return f"broken, needed for {purpose}: {error}"
    names = {"PIL": "pillow"}
    return importlib.metadata.version(names.get(module, module))
