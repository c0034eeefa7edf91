"""A comparison: the runs of several methods and seeds, their tables, plots and files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from fededge import methods
from fededge.cli.experiments.building import (
    check_writable,
    converted,
    experiment,
    settings,
)
from fededge.cli.experiments.simulated_run import progress_bars, run_with_progress
from fededge.config import DataConfig, ModelConfig
from fededge.data.local import model_spec
from fededge.errors import ConfigError, MethodError
from fededge.simulation.experiment import Experiment
from fededge.simulation.presets import preset
from fededge.simulation.results import Result, as_csv, effort, read, summary, write
from fededge.storage.files import replace_file

__all__ = ["compare"]

Column = tuple[str, float, int]

# The columns of the tables: metric, title, unit, and digits after the point.
MODELS = {
    "global_accuracy": ("global %", 100.0, 1),
    "client_accuracy": ("client dist. %", 100.0, 1),
    "personal_accuracy": ("personal %", 100.0, 1),
    "personal_worst_tenth": ("worst tenth %", 100.0, 1),
}
LOCAL = {
    "average_risk": ("risk %", 100.0, 1),
    "kl": ("KL(P‖Q)", 1.0, 1),
    "kl_spread": ("of it spread", 1.0, 1),
    "learning_absent": ("absent kept", 1.0, 2),
}


class Comparison(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a comparison, beside those that all its experiments share."""

    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    last: Annotated[int, Meta(ge=1)] = 1

    @classmethod
    def of(cls, options: argparse.Namespace, values: Mapping[str, Any]) -> Comparison:
        """Return the settings of a file, overridden by flags."""
        names = cls.__struct_fields__
        given = {name: getattr(options, name) for name in names}
        mine = {name: values[name] for name in names if name in values}
        made = converted(mine | {k: v for k, v in given.items() if v is not None}, cls)
        if given["methods"] is None:
            made = msgspec.structs.replace(made, methods=cls._unflagged(options, made.methods))
        if not made.methods:
            raise ConfigError(
                "no method is named: give --methods, or `methods` in the file of --config"
            )
        stacks = [methods.method(text) for text in made.methods]
        if len({(str(stack), *stack.files.values()) for stack in stacks}) < len(stacks):
            raise ConfigError("--methods names a method twice")
        if len(set(made.seeds)) < len(made.seeds):
            raise ConfigError("--seeds names a seed twice")
        return made

    @staticmethod
    def _unflagged(options: argparse.Namespace, named: tuple[str, ...]) -> tuple[str, ...]:
        """Return the file's methods, relative to it; without any, FedAvg and the preset's own."""
        if named:
            return tuple(methods.absolute_paths(text, options.config.parent) for text in named)
        own = preset(options.preset).get("method") if options.preset else None
        return ("fedavg", own) if own else ()


def compare(options: argparse.Namespace) -> None:
    file = settings(options.config, *Comparison.__struct_fields__)
    chosen = Comparison.of(options, file)
    shared = {k: v for k, v in file.items() if k not in Comparison.__struct_fields__}
    planned = [
        experiment(options, shared, method=method, seed=seed)
        for seed in chosen.seeds
        for method in chosen.methods
    ]
    check_writable(options.out / "results", options.json, options.csv)
    _show(options, chosen, *_run_all(options, planned))


def _show(
    options: argparse.Namespace,
    chosen: Comparison,
    runs: dict[str, list[Result]],
    failed: Sequence[str],
) -> None:
    """Show the tables, and write files and plots."""
    console = Console(highlight=False, markup=False)
    if not runs:
        raise MethodError(f"all methods failed: {'; '.join(failed)}")
    last, seeds = chosen.last, len(chosen.seeds)
    when = "last round" if last == 1 else f"mean of the last {last} rounds"
    spread = f"± deviation over {seeds} seeds" if seeds > 1 else "one seed"
    console.print(_table(f"models: {when}, {spread}", runs, MODELS, last))
    console.print(_table("local models, after training", runs, LOCAL, last))
    console.print(_effort_table(runs, last))
    for why in failed:
        console.print(f"left out: {why}", soft_wrap=True)
    if options.json is not None:
        data = msgspec.json.format(_json(runs, last), indent=1)
        replace_file(options.json.absolute(), data + b"\n")
    if options.csv is not None:
        everything = [result for results in runs.values() for result in results]
        replace_file(options.csv.absolute(), as_csv(everything).encode())
    if not options.no_plots:
        from fededge.simulation.plots import plot_comparison

        for path in plot_comparison(runs, _labels(runs), options.out):
            console.print(f"plot written to {path}", soft_wrap=True)


def _run_all(
    options: argparse.Namespace, planned: Sequence[Experiment]
) -> tuple[dict[str, list[Result]], list[str]]:
    """Run every method and seed, seed by seed: an interrupted comparison has complete seeds.

    A method that fails with one seed is left out; its error is returned.
    """
    runs: dict[str, list[Result]] = {chosen.method: [] for chosen in planned}
    failed: list[str] = []
    with progress_bars(Console(stderr=True, markup=False, highlight=False)) as progress:
        missing = sum(chosen.rounds for chosen in planned if read(options.out, chosen) is None)
        whole = progress.add_task("all runs", total=missing, note="")
        for chosen in (chosen for chosen in planned if chosen.method in runs):
            try:
                runs[chosen.method].append(_run_one(options, chosen, progress, whole))
            except MethodError as error:
                failed.append(f"{chosen.method}, seed {chosen.seed}: {error}")
                del runs[chosen.method]
    return runs, failed


def _run_one(
    options: argparse.Namespace, chosen: Experiment, progress: Progress, whole: TaskID
) -> Result:
    """Return the saved result of an earlier comparison, or run the experiment."""
    result = read(options.out, chosen)
    if result is not None:
        return result
    result = run_with_progress(chosen, options.workers, progress, whole)
    write(options.out, result)
    accuracy = result.final["global_accuracy"]
    progress.console.print(f"{chosen.method}, seed {chosen.seed}: global {accuracy:.1%}")
    return result


def _table(
    title: str, runs: dict[str, list[Result]], shown: Mapping[str, Column], last: int
) -> Table:
    table = Table(title=title)
    table.add_column("method", overflow="fold")
    for head, _, _ in shown.values():
        table.add_column(head, justify="right", no_wrap=True)
    for method, results in runs.items():
        mean, std = summary(results, last)
        table.add_row(method, *(_cell(name, mean, std, shown[name], results) for name in shown))
    return table


def _cell(
    name: str,
    mean: Mapping[str, float],
    std: Mapping[str, float],
    column: Column,
    results: Sequence[Result],
) -> str:
    _, unit, digits = column
    if name not in mean:
        return "–"
    value = f"{mean[name] * unit:.{digits}f}"
    return f"{value} ± {std[name] * unit:.{digits}f}" if len(results) > 1 else value


def _effort_table(runs: dict[str, list[Result]], last: int) -> Table:
    """Show each method's effort: rounds to the first one's accuracy, and the cost of a round."""
    first = next(iter(runs))
    table = Table(title=f"effort, against {first}")
    table.add_column("method", overflow="fold")
    for head in ("rounds to its accuracy", "MACs", "numbers up", "down", "time"):
        table.add_column(head, justify="right")
    for method, results in runs.items():
        made = effort(results, runs[first], last)
        rounds = ["–" if count is None else str(count) for count in made["rounds_to_first"]]
        sizes = [f"{made[name]:,.0f}" for name in ("macs", "numbers_up", "numbers_down")]
        table.add_row(method, ", ".join(rounds), *sizes, f"{made['time_ratio']:.2f} ×")
    return table


def _json(runs: dict[str, list[Result]], last: int) -> bytes:
    """Return one object per method: runs, mean and deviation of the final metrics, effort."""
    rows: list[dict[str, Any]] = []
    first = next(iter(runs.values()))
    for method, results in runs.items():
        mean, std = summary(results, last)
        row = {"method": method, "mean": mean, "std": std, "effort": effort(results, first, last)}
        rows.append({**row, "runs": results})
    return msgspec.json.encode(rows)


def _labels(runs: dict[str, list[Result]]) -> tuple[str, ...]:
    setting: Experiment = next(iter(runs.values()))[0].experiment
    data = msgspec.convert({"source": setting.source, "root": setting.root}, DataConfig)
    return model_spec(ModelConfig(name=setting.model), data).labels
