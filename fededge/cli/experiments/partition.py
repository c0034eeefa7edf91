"""`fededge partition`: show how a label-skew split partitions a data set among devices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import numpy as np

__all__ = ["add_to"]

MOST_NAMED = 12
"""The most classes with a column each."""

TEXT = """\
Show how many examples of each class every device gets under a split, as a table and as a plot
(devices × classes, the area of a dot is the number of examples).

splits:
  dirichlet:BETA      each class is shared by a draw from Dirichlet(BETA); small is skewed
  pathological:K      K classes per device
  incomplete[:A-B]    a random number of classes per device
  uniform             no skew

examples:
  fededge partition --split dirichlet:0.1 --devices 20 --plot split.png
  fededge partition --data cifar10:/data --split pathological:2 --devices 10
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument(
        "--data", default="embedded", metavar="SOURCE[:PATH]", help="default: embedded"
    )
    parser.add_argument("--split", default="dirichlet:0.1", help="default: dirichlet:0.1")
    parser.add_argument("--devices", type=int, default=10, help="default: 10")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split (default: 0)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="write a plot too")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    import numpy as np

    from fededge.cli.experiments.data_flag import split_source
    from fededge.data import load, partition, plot_partition

    source, root = split_source(options.data)
    train, _ = load(source, Path(root) if root else None)
    shares = partition(train.y.numpy(), options.devices, options.split, options.seed)
    counts = np.stack([train.subset(share).counts().numpy() for share in shares])
    title = f"{options.split} over {options.devices} devices, seed {options.seed}"
    Console(markup=False).print(_table(title, counts, train.labels))
    if options.plot is not None:
        title = f"{options.data}, {options.split}, seed {options.seed}"
        plot_partition(counts, train.labels, options.plot, title)
        print(f"plot written to {options.plot}")


def _table(title: str, counts: np.ndarray, labels: Sequence[str]) -> Table:
    """Return a table with one row per device; with many classes, only their number."""
    table = Table(title=title)
    few = len(labels) <= MOST_NAMED
    for name in ("device", *(labels if few else ("classes",)), "all"):
        table.add_column(name, justify="right")
    for index, row in enumerate(counts):
        cells = [str(count) if count else "·" for count in row] if few else [str((row > 0).sum())]
        table.add_row(str(index), *cells, str(row.sum()))
    return table
