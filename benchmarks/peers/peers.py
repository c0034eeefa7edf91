"""Simulated rounds beside raw torch workers, Flower and pfl-research, interleaved in one run.

python benchmarks/peers/peers.py [--devices 20] [--participants 8] [--rounds 5] [--blocks 3]
                           [--epochs 2] [--limit 0] [--contenders fededge raw flower pfl]
                           [--json FILE]

All contenders train the same network (LeNet) on the same shards of Fashion-MNIST with the same
devices in each round: FedAvg by examples, SGD with momentum and weight decay, batches of 64. Each
has two processes with one thread.

fededge   `Simulation` with a `ProcessExecutor`, as `fededge simulate --workers 2`
raw       two plain torch processes that share parameters in memory; nothing around them
flower    Flower's FedAvg on its simulation engine (Ray), if `flwr[simulation]` is installed
pfl       pfl-research's FederatedAveraging under torchrun, if `pfl` is installed

The contenders take turns, block by block, in a drawn order, each in a new process. A round lasts
from one model to the next; the first of a block is left out (processes start in it). Accuracy and
loss of the last models show that all train the same: orders of batches are drawn by each, so that
they differ a little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
PACKAGES = {"flower": ("flwr", "ray"), "pfl": ("pfl",)}
"""Packages that a contender needs."""

TIMEOUT = 3600.0
WARM_UP = 1

Blocks = dict[str, list[dict[str, Any]]]


def run(name: str, job: dict[str, Any]) -> dict[str, Any] | str:
    """Run a contender's block in a process of its own; a string says why it could not."""
    launcher = [sys.executable]
    if name == "pfl":
        many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher += [*many, str(job["workers"])]
    command = [*launcher, str(HERE / "peer_simulations.py"), name, json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if done.returncode or not found:
        return (done.stderr.strip() or "no result").splitlines()[-1]
    result: dict[str, Any] = json.loads(found[-1])
    return result


def missing(name: str) -> str | None:
    """Say why a contender cannot run here; None if it can."""
    absent = [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def compare(
    names: Sequence[str], job: dict[str, Any], blocks: int
) -> tuple[Blocks, dict[str, str]]:
    """Let the contenders take turns; one that fails is left out from then on."""
    skipped = {name: why for name in names if (why := missing(name))}
    found: Blocks = {name: [] for name in names if name not in skipped}
    draw = random.Random(0)
    for _ in range(blocks):
        order = list(found)
        draw.shuffle(order)
        for name in order:
            result = run(name, job)
            if isinstance(result, str):
                skipped[name] = result
                del found[name]
                continue
            found[name].append(result)
            shown = " ".join(f"{second:.2f}" for second in result["seconds"])
            print(f"{name:8} rounds of {shown} s", file=sys.stderr, flush=True)
    return found, skipped


def rows(found: Blocks) -> dict[str, dict[str, Any]]:
    """The figures to print: medians, and the ratio of FedEdge's round to each contender's."""
    middle = {
        name: statistics.median(s for block in blocks for s in block["seconds"][WARM_UP:])
        for name, blocks in found.items()
    }
    return {
        name: {
            "round_s": round(middle[name], 4),
            "fededge_ratio": round(middle["fededge"] / middle[name], 3),
            "accuracy": round(statistics.fmean(block["accuracy"] for block in blocks), 4),
            "loss": round(statistics.fmean(block["loss"] for block in blocks), 4),
        }
        for name, blocks in found.items()
    }


def machine() -> dict[str, Any]:
    """The machine, and the versions of what ran on it."""
    versions = {}
    for package in ("fededge", "torch", "flwr", "ray", "pfl"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    contenders = ("fededge", "raw", *PACKAGES)
    parser.add_argument("--contenders", nargs="+", choices=contenders, default=contenders)
    parser.add_argument("--data", default="fashion-mnist", help="(default: fashion-mnist)")
    parser.add_argument("--limit", type=int, default=0, help="most training images; 0: all")
    for name, default in (("devices", 20), ("participants", 8), ("rounds", 5), ("epochs", 2)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    names = ("limit", "devices", "participants", "rounds", "epochs")
    experiment = {name: getattr(flags, name) for name in names}
    experiment |= {"source": flags.data, "split": "uniform", "test_share": 0.0}
    job = {"experiment": experiment, "workers": flags.workers}
    found, skipped = compare(list(dict.fromkeys(["fededge", *flags.contenders])), job, flags.blocks)
    figures = rows(found)
    for name, row in figures.items():
        print(f"{name:8}", "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    for name, why in skipped.items():
        print(f"{name:8} left out: {why}")
    if flags.json:
        report = {"machine": machine(), "job": job, "rows": figures, "left_out": skipped}
        flags.json.write_text(json.dumps({**report, "blocks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
