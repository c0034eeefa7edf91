"""`fededge compare`: several methods over several seeds on one split."""

from __future__ import annotations

import argparse
from pathlib import Path

from fededge.cli.experiments.flags import add_experiment_options

__all__ = ["add_to"]

TEXT = """\
Run several methods with several seeds on one split, and compare them: tables of means and
deviations, and plots. Finished runs are saved in the folder of --out: started again with the same
flags, an interrupted comparison runs only what is missing.

examples:
  fededge compare --methods fedavg "fedprox(mu=0.1)" --seeds 0 1 2 --out results
  fededge compare --preset fedacd-fashion-mnist-b0.1-small --out results
  fededge compare --config comparison.toml   # methods = ["fedavg", "fedacd"], seeds = [0, 1], …
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="methods to compare with the first one (default: fedavg and the preset's own)",
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="(default: 0 1 2)")
    add_experiment_options(parser)
    parser.add_argument("--last", type=int, help="rounds to average (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("fededge-compare"), help="results folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every round as CSV")
    parser.add_argument("--no-plots", action="store_true", help="write no plots")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge.cli.experiments.comparison import compare

    compare(options)
