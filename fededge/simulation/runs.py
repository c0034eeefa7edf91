"""Runs of experiments: the simulated federation of one, and its measurements by round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fededge import methods, models
from fededge.config import DataConfig, ModelConfig
from fededge.data.local import experiment_data, share_examples
from fededge.hardware import Hardware, examine
from fededge.method.layers import SCALARS
from fededge.method.plugins import plugin_errors
from fededge.methods import Hyper
from fededge.model_spec import ModelSpec
from fededge.models.evaluation import (
    fairness,
    kl_from_template,
    label_shares,
    learning_performance,
    mean_and_interval,
    risk,
    wrong_spread,
)
from fededge.simulation.executors import Executor, SerialExecutor, Setup
from fededge.simulation.experiment import Experiment
from fededge.simulation.loop import SimulatedRound, Simulation
from fededge.simulation.workers import ProcessExecutor

__all__ = ["Measured", "load_setup", "run"]


@dataclass(frozen=True)
class Measured:
    """The measurements of a round: numbers for a table, and more for plots.

    Attributes:
        values: metrics of the global and personal models; in some rounds, of the local ones too.
        per_class: the global model's accuracy by class.
        local_classes: mean and 95 % interval of the local models' accuracies by class.
        seconds: the duration of the devices' turns.
    """

    round: int
    values: dict[str, float]
    per_class: list[float]
    local_classes: dict[str, list[float]]
    personal: dict[str, float]
    model_sha256: str
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {"round": self.round, **self.values}


def load_setup(chosen: Experiment) -> Setup:
    """Load the data, partition it among the devices, and return the simulated federation."""
    data = DataConfig(
        source=chosen.source,  # type: ignore[arg-type]
        root=chosen.root,
        split=chosen.split,
        devices=chosen.devices,
        seed=chosen.seed,
        test_share=chosen.test_share,
    )
    model = ModelConfig(name=models.load(chosen.model), head=chosen.head)
    spec, train, test = experiment_data(model, data)
    if not models.in_zoo(chosen.model):
        methods.method(chosen.method).needs(models.build_for(spec, None))
    if chosen.limit and chosen.limit < len(train):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(chosen.seed))
        train = train.subset(order[: chosen.limit].sort().values)
    width = len(str(chosen.devices - 1))
    parts = enumerate(share_examples(train, data))
    devices = {f"device-{index:0{width}d}": part for index, part in parts}
    return Setup(
        method=chosen.method,
        spec=spec,
        hyper=_hyper(chosen),
        seed=chosen.seed,
        devices=devices,
        test_x=test.x,
        test_y=test.y,
        encoding=chosen.encoding,
        hardware=_hardware(chosen, spec),
        network=chosen.model if models.is_reference(chosen.model) else "",
    )


def _hyper(chosen: Experiment) -> Hyper:
    return Hyper(
        chosen.epochs,
        chosen.batch_size,
        chosen.lr,
        chosen.momentum,
        chosen.weight_decay,
        chosen.clip_norm,
    )


def _hardware(experiment: Experiment, spec: ModelSpec) -> Hardware:
    macs = 0 if experiment.threads else models.activation_counts(spec).macs
    return examine(experiment.device, experiment.threads, experiment.precision, macs=macs).hardware


def run(experiment: Experiment, workers: int = 1, setup: Setup | None = None) -> Iterator[Measured]:
    """Run an experiment; yield the measurements of every round.

    Local models are measured only every `measure_every` rounds and in the last one: there are
    many, and each runs over the whole test set.

    Args:
        setup: `load_setup(experiment)`, if the caller has it already.
    """
    setup = setup or load_setup(experiment)
    executor: Executor = SerialExecutor(setup) if workers == 1 else ProcessExecutor(setup, workers)
    try:
        with plugin_errors():
            yield from _measured(experiment, setup, executor)
    finally:
        executor.stop()


def _measured(experiment: Experiment, setup: Setup, executor: Executor) -> Iterator[Measured]:
    weights = Path(experiment.weights) if experiment.weights else None
    simulation = Simulation(setup, experiment.participants, executor, weights)
    shares = label_shares(torch.stack([data.counts for data in setup.devices.values()]))
    personal: dict[str, float] = {}
    seen = [math.nan]
    for done in simulation.rounds(experiment.rounds):
        personal |= {d: answer.personal_accuracy for d, answer in done.answers.items()}
        if simulation.method.refreshes:
            sitting = [d for d in simulation.private if d not in done.answers]
            personal |= executor.refreshed(done.task, sitting, simulation.private)
        number = done.number + 1
        (accuracies,) = executor.measure([done.model])
        values = _values(accuracies, shares, personal) | _mean_scalars(done)
        seen.append(values["personal_accuracy"])
        values["personal_best"] = max(seen, key=lambda score: (score == score, score))
        classes: dict[str, list[float]] = {}
        if number % experiment.measure_every == 0 or number == experiment.rounds:
            trained = torch.stack(executor.measure([a.upload for a in done.answers.values()]))
            values |= _local_values(simulation, executor, done, trained, shares)
            classes = mean_and_interval(trained)
        digest = simulation.layout.sha256(done.model)
        yield Measured(
            number, values, accuracies.tolist(), classes, dict(personal), digest, done.seconds
        )


def _values(accuracies: Tensor, shares: Tensor, personal: dict[str, float]) -> dict[str, float]:
    """Return the metrics of the global model and of the personal ones."""
    scores = torch.tensor([v for v in personal.values() if not math.isnan(v)], dtype=torch.float64)
    return {
        "global_accuracy": float(accuracies.nanmean()),
        "client_accuracy": 1.0 - risk(accuracies[None], shares),
        "personal_accuracy": float(scores.mean()),
        **fairness(scores),
    }


def _local_values(
    simulation: Simulation,
    executor: Executor,
    done: SimulatedRound,
    trained: Tensor,
    shares: Tensor,
) -> dict[str, float]:
    """Return the metrics of the uploaded models; `trained` has their accuracies by class."""
    (before,) = executor.measure([done.task.received])
    P = executor.probabilities({d: answer.upload for d, answer in done.answers.items()}).values()
    counts = torch.stack([simulation.setup.devices[d].counts for d in done.answers])
    present, absent = learning_performance(before, trained, counts)
    return {
        "average_risk": risk(trained, shares),
        "kl": sum(map(kl_from_template, P)) / len(P),
        "kl_spread": sum(map(wrong_spread, P)) / len(P),
        "learning_present": present,
        "learning_absent": absent,
    }


def _mean_scalars(done: SimulatedRound) -> dict[str, float]:
    """Return the devices' mean scalars, the range of a method's own ones, and the update norm.

    Counts and the personal accuracy are left out.
    """
    scalars = [answer.scalars for answer in done.answers.values()]
    names = set.intersection(*map(set, scalars)) - {"examples", "steps", "personal_accuracy"}
    values: dict[str, float] = {}
    for name in sorted(names):
        reported = [by_name[name] for by_name in scalars]
        values[name] = sum(reported) / len(reported)
        if name not in SCALARS:
            values |= {f"{name}_min": min(reported), f"{name}_max": max(reported)}
    # In float64: a float32 sum of a million squares loses the fourth digit.
    moves = [
        torch.linalg.vector_norm(a.upload - done.task.received, dtype=torch.float64)
        for a in done.answers.values()
    ]
    return {**values, "update_norm": float(torch.stack(moves).mean())}
