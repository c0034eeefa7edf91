"""One simulated run, with a progress bar: its table, and its files."""

from __future__ import annotations

import argparse

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

from fededge.cli.experiments.building import check_writable, experiment
from fededge.simulation.cost import turn_cost
from fededge.simulation.experiment import Experiment
from fededge.simulation.results import Result, as_csv
from fededge.simulation.runs import Measured, load_setup, run
from fededge.storage.files import replace_file

__all__ = ["progress_bars", "run_with_progress", "simulate"]

SHOWN = ("global_accuracy", "client_accuracy", "personal_accuracy", "average_risk", "loss")


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
    setup = load_setup(chosen)
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
