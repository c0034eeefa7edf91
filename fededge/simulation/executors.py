"""Executors of the simulated devices' turns, and the one that runs them in this process.

The executor does not change a result: randomness is seeded by run, round, device and purpose, and
updates are summed in the order of device ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fededge import methods
from fededge.errors import ConfigError
from fededge.flat import FlatModel
from fededge.hardware import CPU, Hardware
from fededge.method.plugins import plugin_errors
from fededge.method.teacher import outputs
from fededge.methods import Hyper, Private
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, build_for, load
from fededge.models.evaluation import class_accuracies, probability_matrix
from fededge.training import Answer, Examples, Task, Trainer, prepare_training

__all__ = ["Executor", "SerialExecutor", "Setup"]


@dataclass(frozen=True, eq=False)
class Setup:
    """A simulated federation: method, model, training and data."""

    method: str
    spec: ModelSpec
    hyper: Hyper
    seed: int
    devices: Mapping[str, Examples]
    test_x: Tensor
    test_y: Tensor
    encoding: str = "float32"
    hardware: Hardware = CPU
    network: str = ""
    """The network's configured name, if it is in a user's own file."""


class Executor(Protocol):
    """Runs devices' turns and measures models.

    `measure` returns accuracies by class on the global test set, `probabilities` the probability
    matrix on a device's own data, `refreshed` the accuracy of the personal models that are new on
    devices that sit the round out.
    """

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]: ...

    def refreshed(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, float]: ...

    def measure(self, models: Sequence[Tensor]) -> list[Tensor]: ...

    def probabilities(self, models: Mapping[str, Tensor]) -> dict[str, Tensor]: ...

    def stop(self) -> None: ...


class SerialExecutor:
    """Runs everything in this process, one turn after the other."""

    def __init__(self, setup: Setup) -> None:
        prepare_training(setup.hardware)
        spec = setup.spec
        if setup.network and load(setup.network) != spec.name:
            raise ConfigError(f"{setup.network} has changed since the run began")
        self.setup = setup
        place = torch.device(setup.hardware.device)
        self.net = FlatModel(build_for(spec, setup.seed)).to(place)
        self.preprocess = Preprocess(spec).to(place)
        self.method = methods.method(setup.method)

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]:
        return {d: self.turn(task, d, private.get(d, Private())) for d in devices}

    def turn(self, task: Task, device: str, private: Private) -> Answer:
        with plugin_errors():
            return self._trainer(device).turn(task, private)

    def refreshed(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, float]:
        scores = {d: self.refreshed_one(task, d, private[d]) for d in devices}
        return {device: score for device, score in scores.items() if score is not None}

    def refreshed_one(self, task: Task, device: str, private: Private) -> float | None:
        return self._trainer(device).refreshed_accuracy(task, private)

    def _trainer(self, device: str) -> Trainer:
        data = self.setup.devices[device]
        hardware = self.setup.hardware
        return Trainer(device, self.net, self.preprocess, data, self.method, hardware)

    def measure(self, models: Sequence[Tensor]) -> list[Tensor]:
        return [self.measure_one(model) for model in models]

    def measure_one(self, model: Tensor) -> Tensor:
        self.net.load(model)
        x, y = self.setup.test_x, self.setup.test_y
        return class_accuracies(self.net.module, self.preprocess, x, y, self.setup.spec.classes)

    def probabilities(self, models: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {device: self.probabilities_of(device, model) for device, model in models.items()}

    def probabilities_of(self, device: str, model: Tensor) -> Tensor:
        data = self.setup.devices[device]
        logits = outputs(self.net, model, self.preprocess, data.x).logits
        return probability_matrix(logits, data.y.to(logits.device), data.classes).cpu()

    def stop(self) -> None:
        """Do nothing: there are no processes to end."""
