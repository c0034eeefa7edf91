"""The rounds of a simulated federation: select devices, run their turns, aggregate."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fededge import methods
from fededge.federated.aggregation import aggregate
from fededge.federated.selection import choose, expected_turns
from fededge.federated.warm_start import read_weights
from fededge.flat import FlatModel, Layout, Vector, as_numpy, as_tensors
from fededge.methods import Private
from fededge.models import build_for
from fededge.simulation.executors import Executor, SerialExecutor, Setup
from fededge.training import Answer, Task
from fededge.wire.encoding import Encoding

__all__ = ["SimulatedRound", "Simulation"]

log = logging.getLogger("simulation")


@dataclass(frozen=True, eq=False)
class SimulatedRound:
    """A round's task, next model and answers, and the duration of the devices' turns."""

    task: Task
    model: Tensor
    answers: Mapping[str, Answer]
    seconds: float

    @property
    def number(self) -> int:
        return self.task.number


@dataclass(eq=False)
class Simulation:
    """A federation in which every selected device answers, and every update is accepted.

    `weights`: the file that it begins with, as a coordinator would; None: the seed's own.
    """

    setup: Setup
    participants: int = 0
    executor: Executor | None = None
    weights: Path | None = None
    private: dict[str, Private] = field(default_factory=dict)
    residues: dict[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        net = FlatModel(build_for(self.setup.spec, self.setup.seed))
        self.layout: Layout = net.layout
        self.first = net.vector.clone() if self.weights is None else self._start(self.weights)
        self.method = methods.method(self.setup.method)
        self.encoding = Encoding.parse(self.setup.encoding)

    def _start(self, weights: Path) -> Tensor:
        start = read_weights(weights, self.layout, self.setup.spec)
        if start.doubt:
            log.warning("%s", start.doubt, extra={"event": "weights-doubtful"})
        return torch.from_numpy(start.model)

    def rounds(self, count: int) -> Iterator[SimulatedRound]:
        """Run rounds from the initial model; bit-identical to a federation of processes."""
        setup = self.setup
        executor = self.executor or SerialExecutor(setup)
        method = self.method
        model, state = as_numpy(self.first), method.initial(self.layout)
        turns = expected_turns(count, self.participants, len(setup.devices))
        for number in range(count):
            chosen = choose(setup.devices, self.participants, setup.seed, number)
            sent = as_tensors(method.send(state))
            task = Task(setup.seed, number, setup.hyper, torch.from_numpy(model), sent, turns)
            start = time.perf_counter()
            answers = executor.turns(task, chosen, self.private)
            seconds = time.perf_counter() - start
            self.private |= {device: answer.private for device, answer in answers.items()}
            scalars = {device: answer.scalars for device, answer in answers.items()}
            uploads = {
                device: self._transmit(device, as_numpy(answer.upload), model)
                for device, answer in answers.items()
            }
            model, state = aggregate(
                method,
                model,
                state,
                scalars,
                uploads.__getitem__,
                devices=len(setup.devices),
                layout=self.layout,
            )
            yield SimulatedRound(task, torch.from_numpy(model), answers, seconds)

    def _transmit(self, device: str, upload: Vector, base: Vector) -> Vector:
        """Encode and decode an update; keep the device's residue for its next one."""
        if self.encoding.exact:
            return upload
        before = self.residues.get(device)
        payload, residue = self.encoding.pack(self.layout, upload, base, before)
        assert residue is not None
        self.residues[device] = residue
        return self.encoding.unpack(self.layout, payload, base)
