"""One run of one method on one split: its settings, and its measurements by round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct
from torch import Tensor

from fededge.config import DataConfig, ModelConfig
from fededge.data.local import evaluation_set, model_spec, share_examples, training_set
from fededge.hardware import Hardware, examine
from fededge.method.layers import SCALARS
from fededge.method.plugins import plugin_errors
from fededge.methods import Hyper
from fededge.model_spec import ModelSpec
from fededge.models import activation_counts
from fededge.models.evaluation import (
    fairness,
    kl_from_template,
    label_shares,
    learning_performance,
    mean_and_interval,
    risk,
    wrong_spread,
)
from fededge.simulation.executors import Executor, ProcessExecutor, SerialExecutor, Setup
from fededge.simulation.loop import SimulatedRound, Simulation

__all__ = ["Experiment", "Measured", "run"]


class Experiment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings that determine a run's result."""

    method: str = "fedavg"
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0
    source: str = "embedded"
    root: str = ""
    split: str = "dirichlet:0.1"
    devices: Annotated[int, Meta(ge=1, le=100_000)] = 20
    participants: Annotated[int, Meta(ge=0)] = 8
    test_share: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    limit: Annotated[int, Meta(ge=0)] = 0
    model: str = "lenet"
    head: str = "linear"
    rounds: Annotated[int, Meta(ge=1, le=100_000)] = 20
    epochs: Annotated[int, Meta(ge=1, le=10_000)] = 2
    batch_size: Annotated[int, Meta(ge=1)] = 64
    lr: Annotated[float, Meta(gt=0, le=1e6)] = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Meta(ge=0, le=1e6)] = 1e-5
    clip_norm: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    encoding: str = "float32"
    measure_every: Annotated[int, Meta(ge=1)] = 1
    device: str = "cpu"
    threads: Annotated[int, Meta(ge=0, le=1024)] = 1
    precision: str = "float32"
    method_files: dict[str, str] = {}
    """The SHA-256 of each plugin's file, by method name."""

    def setup(self) -> Setup:
        """Load the data, partition it among the devices, and return the simulated federation."""
        data = DataConfig(
            source=self.source,  # type: ignore[arg-type]
            root=self.root,
            split=self.split,
            devices=self.devices,
            seed=self.seed,
            test_share=self.test_share,
        )
        spec = model_spec(ModelConfig(name=self.model, head=self.head), data)
        train, test = training_set(data, spec), evaluation_set(data, spec)
        if self.limit and self.limit < len(train):
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed))
            train = train.subset(order[: self.limit].sort().values)
        parts = share_examples(train, data)
        width = len(str(self.devices - 1))
        devices = {f"device-{index:0{width}d}": part for index, part in enumerate(parts)}
        hyper = Hyper(
            self.epochs,
            self.batch_size,
            self.lr,
            self.momentum,
            self.weight_decay,
            self.clip_norm,
        )
        hardware = self._hardware(spec)
        return Setup(
            self.method, spec, hyper, self.seed, devices, test.x, test.y, self.encoding, hardware
        )

    def _hardware(self, spec: ModelSpec) -> Hardware:
        macs = 0 if self.threads else activation_counts(spec).macs
        return examine(self.device, self.threads, self.precision, macs=macs).hardware


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


def run(experiment: Experiment, workers: int = 1, setup: Setup | None = None) -> Iterator[Measured]:
    """Run an experiment; yield the measurements of every round.

    Local models are measured only every `measure_every` rounds and in the last one: there are
    many, and each runs over the whole test set.

    Args:
        setup: `experiment.setup()`, if the caller has it already.
    """
    setup = setup or experiment.setup()
    executor: Executor = SerialExecutor(setup) if workers == 1 else ProcessExecutor(setup, workers)
    try:
        with plugin_errors():
            yield from _measured(experiment, setup, executor)
    finally:
        executor.stop()


def _measured(experiment: Experiment, setup: Setup, executor: Executor) -> Iterator[Measured]:
    simulation = Simulation(setup, experiment.participants, executor)
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
