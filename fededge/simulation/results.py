"""Results of runs: saved, loaded, and summarised over seeds."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fededge.simulation.experiment import Experiment
from fededge.simulation.runs import Measured
from fededge.storage.files import replace_file

__all__ = ["Result", "as_csv", "effort", "final_means", "read", "summary", "write"]

LATER = {
    "clip_norm": 0.0,
    "method_files": {},
    "model_file": "",
    "encoding": "float32",
    "weights": "",
    "weights_sha256": "",
    "device": "cpu",
    "threads": 1,
    "precision": "float32",
}


class Result(Struct, frozen=True, kw_only=True):
    """A finished run: the settings, every round, the last one again as `final`, and the cost.

    Repeated runs are equal in everything but `cost`, which includes times.
    """

    method: str
    seed: int
    model_sha256: str
    rounds: list[dict[str, int | float | None]]
    final: dict[str, float | None]
    experiment: Experiment
    per_class: list[float | None]
    local_classes: dict[str, list[float | None]]
    personal: dict[str, float | None]
    cost: dict[str, float]

    @classmethod
    def of(
        cls, experiment: Experiment, measured: Sequence[Measured], cost: Mapping[str, float]
    ) -> Result:
        rounds = [msgspec.to_builtins(_finite(m.as_json())) for m in measured]
        last = measured[-1]
        return cls(
            method=experiment.method,
            seed=experiment.seed,
            model_sha256=last.model_sha256,
            rounds=rounds,
            final={name: value for name, value in rounds[-1].items() if name != "round"},
            experiment=experiment,
            per_class=_numbers(last.per_class),
            local_classes={name: _numbers(values) for name, values in last.local_classes.items()},
            personal=_finite(last.personal),
            cost={**cost, "seconds_a_round": statistics.median(m.seconds for m in measured)},
        )


def _finite(values: dict[Any, float]) -> dict[Any, float | None]:
    """Replace NaN (not measured) by None: JSON has no NaN."""
    return {name: value if value == value else None for name, value in values.items()}


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [value if value == value else None for value in values]


def result_name(experiment: Experiment) -> str:
    """Return the file name of an experiment's result: a hash of its settings.

    Settings added in later releases count only if they differ from their default, so that older
    results keep their names.
    """
    values = msgspec.to_builtins(experiment)
    settings = {k: v for k, v in values.items() if k not in LATER or v != LATER[k]}
    text = msgspec.json.encode(settings, order="sorted")
    word = "".join(c if c.isalnum() else "-" for c in experiment.method).strip("-")
    return f"{word[:40]}-seed{experiment.seed}-{hashlib.sha256(text).hexdigest()[:10]}"


def write(folder: Path, result: Result) -> Path:
    path = folder / f"{result_name(result.experiment)}.json"
    replace_file(path, msgspec.json.format(msgspec.json.encode(result), indent=1))
    return path


def read(folder: Path, experiment: Experiment) -> Result | None:
    """Return the result of an earlier, finished run of this experiment; None if there is none."""
    path = folder / f"{result_name(experiment)}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return None  # absent or truncated: run it again


def final_means(result: Result, last: int = 1) -> dict[str, float]:
    """Return the mean of every metric over the last rounds in which it was measured."""
    rows = result.rounds[-last:]
    columns = {
        name: [value for row in rows if (value := row.get(name)) is not None]
        for name in result.final
    }
    return {name: statistics.fmean(values) for name, values in columns.items() if values}


def summary(results: Sequence[Result], last: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """Return mean and standard deviation over seeds of every metric that all runs have."""
    each = [final_means(result, last) for result in results]
    columns = {name: [row[name] for row in each if name in row] for name in each[0]}
    whole = {name: values for name, values in columns.items() if len(values) == len(results)}
    mean = {name: statistics.fmean(values) for name, values in whole.items()}
    std = {name: statistics.stdev(v) if len(v) > 1 else 0.0 for name, v in whole.items()}
    return mean, std


def effort(results: Sequence[Result], first: Sequence[Result], last: int = 1) -> dict[str, Any]:
    """Return a method's effort, compared seed by seed with a comparison's first method.

    `rounds_to_first` are the rounds to the first method's final global accuracy, None if never
    reached; `time_ratio` is the ratio of a round's training time. The others are the runs' mean
    `cost`.
    """
    pairs = list(zip(results, first, strict=True))
    names = [name for name in results[0].cost if name != "seconds_a_round"]
    seconds = [
        statistics.fmean(result.cost["seconds_a_round"] for result in some)
        for some in (results, first)
    ]
    return {
        "rounds_to_first": [_first_round(one, final_means(other, last)) for one, other in pairs],
        **{name: statistics.fmean(result.cost[name] for result in results) for name in names},
        "time_ratio": seconds[0] / seconds[1],
    }


def _first_round(result: Result, target: Mapping[str, float]) -> int | None:
    """Return the first round that reaches the target's global accuracy."""
    wanted = target.get("global_accuracy", math.inf)
    reached = (row for row in result.rounds if (row["global_accuracy"] or 0.0) >= wanted)
    row = next(reached, None)
    return None if row is None else int(row["round"] or 0)


def as_csv(results: Sequence[Result]) -> str:
    """Return a CSV table with one row per run and round."""
    names = {name for result in results for row in result.rounds for name in row} - {"round"}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ["round", *sorted(names)]
    writer.writerow(["method", "seed", *columns])
    for result in results:
        for row in result.rounds:
            writer.writerow([result.method, result.seed, *(row.get(name) for name in columns)])
    return text.getvalue()
