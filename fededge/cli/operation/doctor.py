"""`fededge doctor`: what this installation can do, and what is wrong with a configuration."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fededge import __version__
from fededge._internal.plain_text import plain
from fededge.config import (
    AgentConfig,
    CoordinatorConfig,
    EvaluationHardwareConfig,
    HardwareConfig,
    load_either,
)
from fededge.errors import ConfigError
from fededge.hardware import Chosen, Finding, Probe, examine, kernels_finding

if TYPE_CHECKING:
    from fededge.doctor import Diagnosis

__all__ = ["add_to"]

TEXT = """\
Show on which hardware a training would run and why, what keeps it from better hardware and the fix,
which implementation of the kernels runs, and which optional packages are installed.

With --config, examine the configuration of a coordinator or an agent: the broker, TLS, the login,
the access list, the federation's state, the clock, the disk, the state folder, the data. Each
finding says what is wrong, why it matters, and the fix. It changes nothing, and does not disturb a
running service. With --deep, the messages of one round travel through the broker, and all data is
read.

The exit code is 0 without findings or with warnings only, 1 with an error, 2 for a wrong command.

examples:
  fededge doctor
  fededge doctor --config agent.toml
  fededge doctor --config coordinator.toml --deep --json
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
    parser.add_argument("--config", type=Path, metavar="TOML", help="examine this configuration")
    parser.add_argument("--deep", action="store_true", help="with the messages of one round")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    wish: EvaluationHardwareConfig = HardwareConfig()
    diagnoses: list[Diagnosis] = []
    if options.deep and options.config is None:
        raise ConfigError("--deep examines a configuration: give --config FILE")
    if options.config is not None:
        wish, diagnoses = _examine(options.config, options.deep)
    facts = gather(wish, PROBE)
    if options.config is None:  # an examination imports only what its configuration needs
        facts |= {module: _optional(module, why) for module, why in OPTIONAL.items()}
    if options.json:
        parts = {} if options.config is None else {"examination": [*map(_as_json, diagnoses)]}
        print(json.dumps({**facts, **parts}, indent=2))
    else:
        _show(facts, diagnoses, options.config)
    return int(any(each.severity.value == "error" for each in diagnoses))


def _examine(path: Path, deep: bool) -> tuple[EvaluationHardwareConfig, list[Diagnosis]]:
    """Examine a configuration; one that cannot be loaded is a finding, too."""
    from fededge.doctor import Subject, found
    from fededge.doctor import examine as examine_configuration

    try:
        config = load_either(path)
    except ConfigError as error:
        return HardwareConfig(), [found("config-invalid", str(error), config=path)]
    assert isinstance(config, CoordinatorConfig | AgentConfig)
    diagnoses = [*examine_configuration(Subject(path, config, deep))]
    return config.hardware, [*diagnoses, *_slow(path, config.hardware, PROBE)]


def _slow(path: Path, wish: EvaluationHardwareConfig, probe: Probe) -> Iterator[Diagnosis]:
    """The findings about hardware and kernels as diagnoses."""
    from fededge import ops
    from fededge.doctor import found

    kernels = ops.facts()
    if kernels["implementation"] == "reference":
        yield found("kernels-not-compiled", kernels["reason"])
    try:
        chosen = _chosen(wish, probe)
    except ConfigError as error:
        yield found("hardware-unusable", str(error), config=path)
        return
    for each in _findings(chosen, kernels["cuda"], probe):
        yield found("hardware-degraded", each.problem, fix=each.fix)


def _as_json(found: Diagnosis) -> dict[str, str]:
    severity = found.severity.value
    return {
        "finding": found.name,
        "severity": severity,
        "what": found.what,
        "why": found.why,
        "fix": found.fix,
    }


def _show(facts: Mapping[str, str], found: Sequence[Diagnosis], config: Path | None) -> None:
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    console = Console(markup=False, highlight=False, emoji=False)
    console.print(table)
    for each in found:
        lines = [f"{each.severity.value}: {each.what} ({each.name})"]
        lines += [f"  why: {each.why}", f"  fix: {each.fix}"]
        console.print(plain_lines(lines), soft_wrap=True)
    if config is not None and not found:
        console.print(f"{config}: nothing is wrong")


def plain_lines(lines: Sequence[str]) -> str:
    """Texts may quote bytes from outside: each stays one line."""
    return "\n".join(plain(line, 2000) for line in lines)


def gather(wish: EvaluationHardwareConfig, probe: Probe) -> dict[str, str]:
    """Return each part and its condition, in words."""
    import torch

    from fededge import ops
    from fededge.federated import sums

    kernels = ops.facts()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {
        "fededge": f"{__version__} on Python {platform.python_version()}, {platform.machine()}",
        "torch": f"{torch.__version__}, {gpu}, {torch.get_num_threads()} threads",
        **_hardware(wish, kernels["cuda"], probe),
        "kernels": f"{kernels['implementation']}: {kernels['reason']}",
        "kernels on a GPU": _on_gpu(kernels["cuda"]),
        "the coordinator's sums": sums.implementation(),
        "onnxruntime": _onnxruntime(),
        "mosquitto": _mosquitto(),
    }


def _hardware(
    wish: EvaluationHardwareConfig, kernels: Mapping[str, Any], probe: Probe
) -> dict[str, str]:
    """Return the hardware of a training, and each finding with its fix."""
    try:
        chosen = _chosen(wish, probe)
    except ConfigError as error:
        return {"training": f"cannot start: {error}"}
    used, findings = chosen.hardware, _findings(chosen, kernels, probe)
    automatic = f"1 to {probe.cores}, by the network" if used.on_cpu else "1"
    threads = wish.threads or automatic
    how = f"{used.precision.value}, {used.memory_format.value}, CPU threads: {threads}"
    rows = {f"finding {number}": str(each) for number, each in enumerate(findings, 1)}
    return {"training": f"{used.reason} ({how})", **rows}


def _chosen(wish: EvaluationHardwareConfig, probe: Probe) -> Chosen:
    return examine(wish.device, wish.threads, wish.precision, wish.memory_format, probe=probe)


def _findings(chosen: Chosen, kernels: Mapping[str, Any], probe: Probe) -> list[Finding]:
    kind, _, index = chosen.hardware.device.partition(":")
    if kind != "cuda":
        return [*chosen.findings]
    slow = kernels_finding(probe, kernels["build"], kernels["reason"], int(index))
    return [*chosen.findings, *([slow] if slow else [])]


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
