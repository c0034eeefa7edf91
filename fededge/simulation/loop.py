"""The rounds of a simulated federation: select, let each device take its turn, aggregate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fededge.aggregation import aggregate
from fededge.flat import FlatModel
from fededge.methods import Hyper, Private, Stack
from fededge.models import Preprocess, build
from fededge.selection import choose
from fededge.spec import ModelSpec
from fededge.training import Answer, Examples, Task, Trainer

__all__ = ["SimulatedRound", "Simulation"]


@dataclass(frozen=True)
class SimulatedRound:
    """What a round led to."""

    number: int
    model: Tensor
    answers: Mapping[str, Answer]


@dataclass
class Simulation:
    """Devices with their data, and a method; `rounds` runs them. All devices accept and answer."""

    method: Stack
    spec: ModelSpec
    hyper: Hyper
    devices: Mapping[str, Examples]
    seed: int
    participants: int = 0
    private: dict[str, Private] = field(default_factory=dict)

    def rounds(self, count: int) -> Iterator[SimulatedRound]:
        """Run rounds from the first model on; the same bytes as a federation of processes."""
        spec = self.spec
        net = FlatModel(build(spec.name, spec.classes, spec.shape, self.seed))
        model, state = net.vector.clone(), self.method.initial(net.layout)
        preprocess = Preprocess(spec)
        for number in range(count):
            sent = dict(self.method.send(state))
            task = Task(self.seed, number, self.hyper, model, sent)
            answers = self._turns(task, net, preprocess)
            reports = {device: answer.scalars for device, answer in answers.items()}
            uploads = {device: answer.upload for device, answer in answers.items()}
            model, state = aggregate(
                self.method, model, state, reports, uploads.__getitem__, devices=len(self.devices)
            )
            yield SimulatedRound(number, model, answers)

    def _turns(self, task: Task, net: FlatModel, preprocess: Preprocess) -> dict[str, Answer]:
        """Each chosen device's turn, one after the other."""
        answers: dict[str, Answer] = {}
        for device in choose(self.devices, self.participants, self.seed, task.number):
            trainer = Trainer(device, net, preprocess, self.devices[device], self.method)
            answers[device] = trainer.turn(task, self.private.get(device, Private()))
            self.private[device] = answers[device].private
        return answers
