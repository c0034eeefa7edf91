"""The trainer: a device's turn, from the global model to the upload.

Only the trainer and its loop call a method's device half.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fededge._internal.lazy_torch import Tensor, nn
from fededge.flat import FlatModel, as_numpy, finite
from fededge.method.base import Examples, Hyper
from fededge.method.private import Private
from fededge.method.stack import Stack
from fededge.method.turn import Turn
from fededge.method.validation import LONGEST_STEP, largest_change
from fededge.models.evaluation import accuracy
from fededge.training.loop import Loop, StepCallback, diverged
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

    @cached_property
    def deployed(self) -> FlatModel:
        """The network of the personal model: the federation's, or one that the method builds."""
        network = self.method.network(self.net.module, self.data)
        return self.net if network is self.net.module else FlatModel(network)

    def turn(self, task: Task, private: Private, progress: StepCallback | None = None) -> Answer:
        """Take a turn with the method's hooks: `begin`, phases of steps, `finish`, `personal`."""
        self.method.needs(self.net.module)
        turn = self._turn(task, private)
        with own_randomness(turn.generator("network/turn")):
            phases = self.method.phases(turn)
            turn.phase = phases[0]
            start = self.method.begin(turn)
            turn.start = start if start is task.received else start.clone()
            self.net.load(turn.start)
            loss = Loop(self.method, turn, progress).run(phases)
            return self._answer(turn, loss)

    def refreshed_accuracy(self, task: Task, private: Private) -> float | None:
        """Return the personal model's accuracy in a round that the device sits out.

        None: the model is unchanged.
        """
        turn = self._turn(task, private)
        with own_randomness(turn.generator("network/turn")):
            turn.phase = self.method.phases(turn)[0]
            personal = self.method.refreshed(turn)
        return None if personal is None else self.accuracy(personal, self.deployed)

    def _answer(self, turn: Turn, loss: float) -> Answer:
        done = self.method.finish(turn)
        assert done.upload is not None
        turn.private = Private(done.private)
        personal = self.method.personal(turn)
        upload = done.upload.clone()
        if not finite(upload):
            raise diverged(turn, "the model to upload is not finite")
        moved = largest_change(as_numpy(upload), as_numpy(turn.received))
        if moved > LONGEST_STEP:  # the coordinator would refuse it
            raise diverged(turn, f"a number of the model has moved by {moved:.3g}")
        personal = upload if personal is done.upload else personal.clone()
        score = self.accuracy(personal, self.deployed)
        scalars = {"examples": float(len(self.data.y)), "steps": float(turn.steps), "loss": loss}
        if len(self.data.held_y):
            scalars["personal_accuracy"] = score
        return Answer(upload, {**scalars, **done.scalars}, turn.private, personal, score)

    def accuracy(self, vector: Tensor, net: FlatModel | None = None) -> float:
        """Return a model's accuracy on the device's held-out data; `net` if its layout differs."""
        net = net or self.net
        before = net.swap(vector)
        try:
            return accuracy(net.module, self.preprocess, self.data.held_x, self.data.held_y)
        finally:
            net.swap(before)

    def _turn(self, task: Task, private: Private) -> Turn:
        return Turn(
            seed=task.seed,
            number=task.number,
            device=self.device,
            hyper=task.hyper,
            data=self.data,
            preprocess=self.preprocess,
            net=self.net,
            received=task.received,
            sent=task.sent,
            private=private,
            loss=self.method.loss,
            turns=task.turns,
        )
