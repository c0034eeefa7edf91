"""`fededge demo`: a federation of real processes on this machine, and its results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fededge.cli.hardware_flags import add_hardware_flags
from fededge.errors import ConfigError
from fededge.storage.files import replace_file

__all__ = ["add_to"]

TEXT = """\
Run a whole federation on this machine: a broker, one coordinator process and several agent
processes, on real images whose labels are strongly skewed between the agents (Dirichlet 0.1).
At the end every agent has a personal ONNX model, which is run with ONNX Runtime.

examples:
  fededge demo
  fededge demo --method "fedprox(mu=0.1)" --rounds 20 --seed 3
  fededge demo --agents 8 --json result.json
  fededge demo --data cifar10:/data/cifar-10 --out /tmp/cifar
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--method", default="fedavg", help="how to train (default: fedavg)")
    parser.add_argument(
        "--model",
        default="lenet",
        help="a network: a name, FILE.py:NAME or torchvision:NAME (default: lenet)",
    )
    parser.add_argument("--rounds", type=int, default=10, help="rounds to run (default: 10)")
    parser.add_argument("--agents", type=int, default=4, help="agent processes (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all randomness (default: 0)")
    parser.add_argument(
        "--data", default="embedded", metavar="SOURCE[:PATH]", help="default: embedded"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("fededge-demo"), help="folder for all files"
    )
    parser.add_argument(
        "--broker",
        choices=("auto", "mosquitto", "python"),
        default="auto",
        help="auto: Mosquitto if it is installed, else the broker in Python",
    )
    add_hardware_flags(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON too")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge.cli.demo.fleet import Fleet, FleetOptions
    from fededge.cli.experiments.data_flag import split_source

    source, root = split_source(options.data)
    fleet = Fleet(
        FleetOptions(
            method=options.method,
            rounds=options.rounds,
            agents=options.agents,
            seed=options.seed,
            source=source,
            root=root,
            folder=options.out.absolute(),
            broker=options.broker,
            device=options.device,
            threads=options.threads,
            precision=options.precision,
            model=options.model,
        )
    )
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ConfigError(f"{options.json}: there is no folder {options.json.absolute().parent}")
    from fededge.cli.demo import report

    with report.LiveProgress(options.rounds, options.agents) as progress:
        fleet.run(progress)
    outcome = report.collect(fleet)
    report.show(outcome)
    if options.json is not None:
        text = json.dumps(outcome.as_json(), indent=2)
        replace_file(options.json.absolute(), f"{text}\n".encode())
        print(f"result written to {options.json}")
