"""The work that the contenders of `peers.py` share: shards, schedule, plain training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fededge.federated.selection import choose
from fededge.models import Preprocess, build_for
from fededge.simulation.executors import Setup
from fededge.simulation.experiment import Experiment
from fededge.simulation.runs import load_setup
from fededge.training import Examples

__all__ = ["PlainTorch", "SimulatedJob", "SimulatedRounds", "mean"]


@dataclass(frozen=True)
class SimulatedRounds:
    """A contender's result: seconds of each round, and what its last model does on the test set."""

    seconds: list[float]
    accuracy: float
    loss: float


@dataclass
class SimulatedJob:
    """One federation: the same shards, schedule and hyper-parameters for every contender."""

    experiment: dict[str, object] = field(default_factory=dict)
    workers: int = 2

    @cached_property
    def chosen(self) -> Experiment:
        return Experiment(**self.experiment)  # type: ignore[arg-type]  # checked by its flags

    @cached_property
    def setup(self) -> Setup:
        return load_setup(self.chosen)

    def participants(self, number: int) -> list[str]:
        """The devices of a round."""
        chosen = self.chosen
        return choose(self.setup.devices, chosen.participants, chosen.seed, number)

    def result(self, seconds: Sequence[float], model: torch.Tensor) -> SimulatedRounds:
        accuracy, loss = PlainTorch(self).test(model)
        return SimulatedRounds(list(seconds), accuracy, loss)


class PlainTorch:
    """A network in a loop that knows torch alone: what a user would write first."""

    def __init__(self, job: SimulatedJob) -> None:
        torch.set_num_threads(1)
        self.setup = job.setup
        self.module = build_for(self.setup.spec, self.setup.seed)
        if any(True for _ in self.module.buffers()):
            raise SystemExit("peers: choose a network without buffers, such as lenet")
        self.preprocess = Preprocess(self.setup.spec)

    @property
    def model(self) -> torch.Tensor:
        return parameters_to_vector(self.module.parameters()).detach()

    @model.setter
    def model(self, values: torch.Tensor) -> None:
        vector_to_parameters(values.clone(), self.module.parameters())

    def train(self, data: Examples) -> None:
        """A device's local epochs."""
        hyper = self.setup.hyper
        optimiser = torch.optim.SGD(
            self.module.parameters(),
            lr=hyper.lr,
            momentum=hyper.momentum,
            weight_decay=hyper.weight_decay,
        )
        self.module.train()
        for _ in range(hyper.epochs):
            for index in torch.randperm(len(data.y)).split(hyper.batch_size):
                loss = F.cross_entropy(self.module(self.preprocess(data.x[index])), data.y[index])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    @torch.no_grad()
    def test(self, model: torch.Tensor) -> tuple[float, float]:
        """Accuracy and loss of a model on the test set."""
        self.model = model
        self.module.eval()
        parts = self.setup.test_x.split(500)
        logits = torch.cat([self.module(self.preprocess(part)) for part in parts])
        right = (logits.argmax(1) == self.setup.test_y).double().mean()
        return float(right), float(F.cross_entropy(logits, self.setup.test_y))


def mean(models: Sequence[torch.Tensor], examples: Sequence[int]) -> torch.Tensor:
    """Federated averaging."""
    weights = torch.tensor(examples, dtype=torch.float32)
    return torch.stack(list(models)).mul((weights / weights.sum())[:, None]).sum(0)
