"""`fededge simulate`: one method on a simulated fleet."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fededge.cli.experiments import add_experiment_options, check_writable, experiment
from fededge.simulation.cost import turn_cost
from fededge.simulation.experiment import Experiment, Measured, run
from fededge.simulation.results import Result, as_csv
from fededge.storage.files import replace_file

__all__ = ["add_to", "run_with_progress"]

TEXT = """\
Simulate a fleet on this machine: the same code, seeds and weights as a real federation, but
without a broker and without a process for each device.

examples:
  fededge simulate --method fedprox --rounds 20
  fededge simulate --data fashion-mnist --split dirichlet:0.1 --devices 20 --workers 2
  fededge simulate --preset fedacd-fashion-mnist-b0.1-small --json result.json
"""

SHOWN = ("global_accuracy", "client_accuracy", "personal_accuracy", "average_risk", "loss")


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--method", help="such as fedavg or 'fedprox(mu=0.1)' (default: fedavg)")
    parser.add_argument("--seed", type=int, help="seed of all randomness (default: 0)")
    add_experiment_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every round as CSV")
    parser.set_defaults(run=simulate)


def simulate(options: argparse.Namespace) -> None:
    chosen = experiment(options, method=options.method, seed=options.seed)
    check_writable(options.json, options.csv)
    console = Console(highlight=False, markup=False)
    with progress_bars(console) as progress:
        result = run_with_progress(chosen, options.workers, progress)
    console.print(_table(result))
    console.print(f"global model sha256 {result.model_sha256}", soft_wrap=True)
    if options.json is not None:
        data = msgspec.json.format(msgspec.json.encode(result), indent=1)
        replace_file(options.json.absolute(), data + b"\n")
    if options.csv is not None:
        replace_file(options.csv.absolute(), as_csv([result]).encode())


def progress_bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=3600,  # seconds: a round may take minutes
    )


def run_with_progress(
    chosen: Experiment, workers: int, progress: Progress, whole: TaskID | None = None
) -> Result:
    """Run an experiment with a progress bar.

    Within a comparison it also advances the bar `whole`, and removes its own at the end: there
    are more runs than lines on a terminal.
    """
    name = f"{chosen.method}, seed {chosen.seed}"
    task = progress.add_task(name, total=chosen.rounds, note="loading data …")
    measured: list[Measured] = []
    setup = chosen.setup()
    try:
        for round_ in run(chosen, workers, setup):
            measured.append(round_)
            note = f"global {round_.values['global_accuracy']:.1%}"
            progress.update(task, completed=round_.round, note=note)
            if whole is not None:
                progress.advance(whole)
    finally:
        if whole is not None:
            progress.remove_task(task)
    return Result.of(chosen, measured, turn_cost(setup))


def _table(result: Result) -> Table:
    table = Table(title=f"{result.method}, seed {result.seed}")
    table.add_column("round", justify="right")
    for name in SHOWN:
        table.add_column(name.replace("_", " "), justify="right")
    for row in result.rounds:
        cells = [_cell(name, row.get(name)) for name in SHOWN]
        table.add_row(f"{row['round']:.0f}", *cells)
    return table


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if name == "loss" else f"{value:.1%}"
