"""Simulated turns in two worker processes, relative to half of one process's time.

python benchmarks/turns.py [--methods fedavg fedphp] [--devices 20] [--examples 64] [--workers 2]
                           [--rounds 15] [--json FILE]

ratio       of the clock: a round with the workers, to one process's round divided by their number
cpu_ratio   of the processor: all processes together, to one process

1.00 is perfect: workers cost nothing. Both take the same round in turn; a ratio is the median over
rounds. The clock's says something only where the cores are free, the processor's always. A device
has a quarter as many held-out examples, on which its turn ends with an evaluation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from process_figures import usage

from fededge.flat import as_tensors
from fededge.methods import Private
from fededge.simulation import Executor, ProcessExecutor, SerialExecutor, Setup, Simulation
from fededge.simulation.experiment import Experiment
from fededge.simulation.runs import load_setup
from fededge.training import Task


class Contender:
    """One of the two executors, with its devices' private states."""

    def __init__(self, setup: Setup, executor: Executor, workers: list[int]) -> None:
        self.executor, self.workers, self.devices = executor, workers, list(setup.devices)
        simulation = Simulation(setup)
        sent = as_tensors(simulation.method.send(simulation.method.initial(simulation.layout)))
        self.task = Task(setup.seed, 0, setup.hyper, simulation.first, sent)
        self.private: dict[str, Private] = {}

    def round(self) -> tuple[float, float]:
        """Take all turns; return the seconds of the clock and of all processors."""
        began, used = time.perf_counter(), self._used()
        answers = self.executor.turns(self.task, self.devices, self.private)
        seconds, processor = time.perf_counter() - began, self._used() - used
        self.private = {device: answer.private for device, answer in answers.items()}
        return seconds, processor

    def _used(self) -> float:
        return time.process_time() + sum(usage(pid).cpu_s for pid in self.workers)


def compare(method: str, flags: argparse.Namespace) -> dict[str, Any]:
    head = "cosine:0.1" if method.startswith("lfd") else "linear"
    chosen = Experiment(
        method=method,
        head=head,
        split="uniform",
        devices=flags.devices,
        limit=flags.devices * flags.examples * 5 // 4,
        epochs=1,
    )
    setup = load_setup(chosen)
    several = ProcessExecutor(setup, flags.workers)
    ours = Contender(setup, several, [])
    one = Contender(setup, SerialExecutor(setup), [])
    for _ in range(2):  # processes start, private states come to be
        ours.round()
        one.round()
    ours.workers = [worker.pid for worker in several.workers if worker.pid is not None]
    pairs = [(ours.round(), one.round()) for _ in range(flags.rounds)]
    several.stop()
    return {
        "method": method,
        "turn_ms": round(statistics.median(b[0] for _, b in pairs) / flags.devices * 1e3, 2),
        "ratio": round(statistics.median(a[0] / b[0] * flags.workers for a, b in pairs), 3),
        "cpu_ratio": round(sum(a[1] for a, _ in pairs) / sum(b[1] for _, b in pairs), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedphp"])
    for name, default in (("devices", 20), ("examples", 64), ("workers", 2), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    rows = []
    for method in flags.methods:
        rows.append(compare(method, flags))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
