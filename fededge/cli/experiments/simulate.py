"""`fededge simulate`: one method on a simulated fleet."""

from __future__ import annotations

import argparse
from pathlib import Path

from fededge.cli.experiments.flags import add_experiment_options

__all__ = ["add_to"]

TEXT = """\
Simulate a fleet on this machine: the same code, seeds and weights as a real federation, but
without a broker and without a process for each device.

examples:
  fededge simulate --method fedprox --rounds 20
  fededge simulate --data fashion-mnist --split dirichlet:0.1 --devices 20 --workers 2
  fededge simulate --preset fedacd-fashion-mnist-b0.1-small --json result.json
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--method", help="such as fedavg or 'fedprox(mu=0.1)' (default: fedavg)")
    parser.add_argument("--seed", type=int, help="seed of all randomness (default: 0)")
    add_experiment_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every round as CSV")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge.cli.experiments.simulated_run import simulate

    simulate(options)
