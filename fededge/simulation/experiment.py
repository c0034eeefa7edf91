"""One run of one method on one split: its settings, and what it measured round by round."""

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
from fededge.method.layers import SCALARS
from fededge.method.plugins import telling_lines
from fededge.methods import Hyper
from fededge.models.evaluation import (
    fairness,
    kl_from_template,
    label_shares,
    learning_performance,
    mean_and_interval,
    risk,
    wrong_spread,
)
from fededge.simulation.loop import SimulatedRound, Simulation
from fededge.simulation.workers import Alone, Crew, Setup, Workers

__all__ = ["Experiment", "Measured", "run"]


class Experiment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides a run's result."""

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
    method_files: dict[str, str] = {}
    """The SHA-256 of the file of each method that is the user's own, by its name."""

    def setup(self) -> Setup:
        """Load the data, share it among the devices, and put everything together."""
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
        return Setup(self.method, spec, hyper, self.seed, devices, test.x, test.y, self.encoding)


@dataclass(frozen=True)
class Measured:
    """What a round led to: numbers for a table, and more for plots.

    Attributes:
        values: of the global model and the personal ones; in some rounds, of the local ones too.
        per_class: the global model's accuracy by class.
        local_classes: the local models' accuracies by class, their mean and its 95 % interval.
        seconds: that the devices' turns took.
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
    """Run an experiment; yields after every round.

    The round's local models are measured only every `measure_every` rounds and in the last one:
    there are many of them, and each goes over the whole test set.

    Args:
        setup: `experiment.setup()`, if it is there already.
    """
    setup = setup or experiment.setup()
    crew: Crew = Alone(setup) if workers == 1 else Workers(setup, workers)
    try:
        with telling_lines():
            yield from _measured(experiment, setup, crew)
    finally:
        crew.stop()


def _measured(experiment: Experiment, setup: Setup, crew: Crew) -> Iterator[Measured]:
    simulation = Simulation(setup, experiment.participants, crew)
    shares = label_shares(torch.stack([data.counts for data in setup.devices.values()]))
    personal: dict[str, float] = {}
    seen = [math.nan]
    for done in simulation.rounds(experiment.rounds):
        personal |= {d: answer.personal_accuracy for d, answer in done.answers.items()}
        if simulation.method.refreshes:
            sitting = [d for d in simulation.private if d not in done.answers]
            personal |= crew.refreshed(done.task, sitting, simulation.private)
        number = done.number + 1
        (accuracies,) = crew.measure([done.model])
        values = _values(accuracies, shares, personal) | _mean_scalars(done)
        seen.append(values["personal_accuracy"])
        values["personal_best"] = max(seen, key=lambda score: (score == score, score))
        classes: dict[str, list[float]] = {}
        if number % experiment.measure_every == 0 or number == experiment.rounds:
            trained = torch.stack(crew.measure([a.upload for a in done.answers.values()]))
            values |= _local_values(simulation, crew, done, trained, shares)
            classes = mean_and_interval(trained)
        digest = simulation.layout.sha256(done.model)
        yield Measured(
            number, values, accuracies.tolist(), classes, dict(personal), digest, done.seconds
        )


def _values(accuracies: Tensor, shares: Tensor, personal: dict[str, float]) -> dict[str, float]:
    """The metrics of the global model and of the personal ones."""
    scores = torch.tensor([v for v in personal.values() if not math.isnan(v)], dtype=torch.float64)
    return {
        "global_accuracy": float(accuracies.nanmean()),
        "client_accuracy": 1.0 - risk(accuracies[None], shares),
        "personal_accuracy": float(scores.mean()),
        **fairness(scores),
    }


def _local_values(
    simulation: Simulation, crew: Crew, done: SimulatedRound, trained: Tensor, shares: Tensor
) -> dict[str, float]:
    """The metrics of the models that the devices sent; `trained` has their accuracies."""
    (before,) = crew.measure([done.task.received])
    P = crew.probabilities({d: answer.upload for d, answer in done.answers.items()}).values()
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
    """The mean over the devices of what they reported, beside counts and their own accuracy, and
    the range of a method's own scalars; and how far the model was moved.
    """
    reports = [answer.scalars for answer in done.answers.values()]
    names = set.intersection(*map(set, reports)) - {"examples", "steps", "personal_accuracy"}
    values: dict[str, float] = {}
    for name in sorted(names):
        reported = [report[name] for report in reports]
        values[name] = sum(reported) / len(reported)
        if name not in SCALARS:
            values |= {f"{name}_min": min(reported), f"{name}_max": max(reported)}
    # In float64: of a million squares, a sum in float32 loses the fourth digit.
    moves = [
        torch.linalg.vector_norm(a.upload - done.task.received, dtype=torch.float64)
        for a in done.answers.values()
    ]
    return {**values, "update_norm": float(torch.stack(moves).mean())}
