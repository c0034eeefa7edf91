"""`fededge doctor`: the features of this installation, and what is missing."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from fededge import __version__

__all__ = ["add_to"]

TEXT = """\
Show which implementation of the kernels runs and why, and which optional packages are installed.

examples:
  fededge doctor
  fededge doctor --json
"""

OPTIONAL = {
    "torchvision": "CIFAR and MNIST in torchvision's layout (pip install fededge[vision])",
    "PIL": "image folders (pip install fededge[vision])",
    "matplotlib": "plots (pip install fededge[plot])",
    "amqtt": "a broker without Mosquitto (pip install fededge[broker])",
}


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    facts = gather()
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    Console(markup=False).print(table)


def gather() -> dict[str, str]:
    """Return each part and its condition, in words."""
    import torch

    from fededge import ops
    from fededge.federated import sums

    kernels = ops.facts()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    facts = {
        "fededge": f"{__version__} on Python {platform.python_version()}, {platform.machine()}",
        "torch": f"{torch.__version__}, {gpu}, {torch.get_num_threads()} threads",
        "kernels": f"{kernels['implementation']}: {kernels['reason']}",
        "kernels on a GPU": _on_gpu(kernels["cuda"]),
        "the coordinator's sums": sums.implementation(),
        "onnxruntime": importlib.metadata.version("onnxruntime"),
        "mosquitto": _mosquitto(),
    }
    return facts | {module: _optional(module, purpose) for module, purpose in OPTIONAL.items()}


def _on_gpu(kernels: Mapping[str, Any]) -> str:
    build = kernels["build"]
    built = f"; built with CUDA {build['cuda']} for {build['architectures']}" if build else ""
    return f"{kernels['implementation']}: {kernels['reason']}{built}"


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
