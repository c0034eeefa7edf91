"""The trainer: a device's turn, from the global model to the upload.

Only the trainer and its loop call a method's device half.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.flat import FlatModel, Vector, as_numpy, finite
from fededge.hardware import CPU, Hardware
from fededge.method.base import Examples, Hyper
from fededge.method.private import Private, Value
from fededge.method.stack import Stack
from fededge.method.turn import Turn
from fededge.method.validation import LONGEST_STEP, largest_change
from fededge.models import computing_on
from fededge.models.evaluation import accuracy
from fededge.training.host_copies import HostCopies
from fededge.training.loop import Loop, StepCallback, diverged
from fededge.training.out_of_memory import device_errors
from fededge.training.placement import placed
from fededge.training.step import own_randomness

__all__ = ["Answer", "Task", "Trainer"]


@dataclass(frozen=True, eq=False)
class Task:
    """A request to a device: one turn in this round, from this model.

    `turns` is the expected number of the device's turns in the run.
    """

    seed: int
    number: int
    hyper: Hyper
    received: Tensor
    sent: dict[str, Tensor]
    turns: int = 1


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of a turn. `upload` and `scalars` leave the device, the rest does not.

    `personal` holds the values of the network `Trainer.deployed`.
    """

    upload: Tensor
    scalars: dict[str, float]
    private: Private
    personal: Tensor
    personal_accuracy: float


@dataclass(eq=False)
class Trainer:
    """A device's network, data and method, ready to take turns."""

    device: str
    net: FlatModel
    preprocess: nn.Module
    data: Examples
    method: Stack
    hardware: Hardware = CPU

    def __post_init__(self) -> None:
        if self.place.type != "cpu":  # torch seeds and pins for the current device
            torch.get_device_module(self.place.type).set_device(self.place)
        if self.net.vector.device != self.place:
            with device_errors(self.place, f"device {self.device}"):
                self.net.to(self.place)
                self.preprocess.to(self.place)

    @cached_property
    def place(self) -> torch.device:
        """The device that training runs on; all vectors of a turn are there."""
        return torch.empty(0, device=self.hardware.device).device  # "cuda" gets its index

    @cached_property
    def placed(self) -> Examples:
        """The examples where training is."""
        return placed(self.data, self.place)

    @cached_property
    def deployed(self) -> FlatModel:
        """The network of the personal model: the federation's, or one that the method builds."""
        network = self.method.network(self.net.module, self.data)
        return self.net if network is self.net.module else FlatModel(network.to(self.place))

    def turn(self, task: Task, private: Private, progress: StepCallback | None = None) -> Answer:
        """Take a turn with the method's hooks: `begin`, phases of steps, `finish`, `personal`."""
        self.method.needs(self.net.module)
        with self._running(task):
            return self._take(self._turn(task, private), task, progress)

    @contextmanager
    def _running(self, task: Task) -> Iterator[None]:
        """Run on the trainer's hardware; its failures become one sentence."""
        what = f"device {self.device}, round {task.number + 1}"
        with device_errors(self.place, what), computing_on(self.hardware):
            yield

    def _take(self, turn: Turn, task: Task, progress: StepCallback | None) -> Answer:
        with own_randomness(turn.generator("network/turn"), self.place):
            phases = self.method.phases(turn)
            turn.phase = phases[0]
            start = self.method.begin(turn)
            turn.start = start if start is turn.received else start.clone()
            self.net.load(turn.start)
            loss = Loop(self.method, turn, progress).run(phases)
            return self._answer(turn, loss, as_numpy(task.received))

    def refreshed_accuracy(self, task: Task, private: Private) -> float | None:
        """Return the personal model's accuracy in a round that the device sits out.

        None: the model is unchanged.
        """
        with self._running(task):
            turn = self._turn(task, private)
            with own_randomness(turn.generator("network/turn"), self.place):
                turn.phase = self.method.phases(turn)[0]
                personal = self.method.refreshed(turn)
        return None if personal is None else self.accuracy(personal, self.deployed)

    def _answer(self, turn: Turn, loss: float, received: Vector) -> Answer:
        done = self.method.finish(turn)
        assert done.upload is not None
        turn.private = Private(done.private)
        personal = self.method.personal(turn)
        host = HostCopies()
        upload = host.tensor(done.upload)
        check_upload(turn, as_numpy(upload), received)
        score = self.accuracy(personal, self.deployed)
        scalars = {"examples": float(len(self.data.y)), "steps": float(turn.steps), "loss": loss}
        if len(self.data.held_y):
            scalars["personal_accuracy"] = score
        private = host.private(turn.private)
        return Answer(upload, {**scalars, **done.scalars}, private, host.tensor(personal), score)

    def accuracy(self, vector: Tensor, net: FlatModel | None = None) -> float:
        """Return a model's accuracy on the device's held-out data; `net` if its layout differs."""
        net = net or self.net
        before = net.swap(vector)
        try:
            return accuracy(net.module, self.preprocess, self.placed.held_x, self.placed.held_y)
        finally:
            net.swap(before)

    def _turn(self, task: Task, private: Private) -> Turn:
        """Bring the task's vectors and the private state to where training is."""
        return Turn(
            seed=task.seed,
            number=task.number,
            device=self.device,
            hyper=task.hyper,
            data=self.placed,
            preprocess=self.preprocess,
            net=self.net,
            received=task.received.to(self.place),
            sent={name: vector.to(self.place) for name, vector in task.sent.items()},
            private=Private({name: _to(value, self.place) for name, value in private.items()}),
            loss=self.method.loss,
            turns=task.turns,
            precision=self.hardware.precision,
        )


def check_upload(turn: Turn, upload: Vector, received: Vector) -> None:
    """Refuse a model that the coordinator would refuse."""
    if not finite(upload):
        raise diverged(turn, turn.steps + 1, "the model to upload is not finite")
    moved = largest_change(upload, received)
    if moved > LONGEST_STEP:
        raise diverged(turn, turn.steps + 1, f"a number of the model has moved by {moved:.3g}")


def _to(value: Value, place: torch.device) -> Value:
    return value.to(place) if isinstance(value, Tensor) else value
