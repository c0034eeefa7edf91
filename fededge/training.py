"""The local loop: a device's turn, from the global model to what it sends. Written once for all.

This is the one place where a method's device half is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fededge.errors import MethodError
from fededge.evaluation import accuracy
from fededge.flat import FlatModel, as_numpy, finite
from fededge.late import Tensor, nn, torch
from fededge.methods.base import Examples, Hyper, Phase
from fededge.methods.compose import Stack
from fededge.methods.given import LONGEST_STEP, farthest
from fededge.methods.private import Private
from fededge.methods.steps import (
    Batches,
    LocalStep,
    own_randomness,
    training_mode,
    training_only,
)
from fededge.methods.turn import Turn

__all__ = ["Answer", "Examples", "Task", "Trainer", "prepare_threads", "prepare_training"]

Progress = Callable[[int, int, float], None]
"""Told after every step: steps done, steps in all, loss."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a device is asked for: a turn in this round, from this model.

    `turns` is how often the run expects to ask it.
    """

    seed: int
    number: int
    hyper: Hyper
    received: Tensor
    sent: dict[str, Tensor]
    turns: int = 1


@dataclass(frozen=True, eq=False)
class Answer:
    """What a turn gives: the first two leave the device, the others do not.

    `personal` are the values of the network `Trainer.deployed`.
    """

    upload: Tensor
    scalars: dict[str, float]
    private: Private
    personal: Tensor
    personal_accuracy: float


def prepare_threads() -> None:
    """Small models train fastest with one thread a process; a fleet simulation has one each."""
    torch.set_num_threads(1)


# glibc takes blocks of up to 32 MiB for transient once one of that size has been freed.
LARGEST_TRANSIENT = (32 << 20) - (64 << 10)


def prepare_training() -> None:
    """Make this process ready to train small models: one thread, and memory that is kept.

    Of its own accord glibc hands what a step frees back to the kernel, and takes it again, page by
    page, in the next one: with LeNet that is a third of the time. It learns from the largest block
    that it sees freed what is worth keeping, up to 64 MiB, so it is shown one; nothing touches its
    pages. Other allocators take no notice.
    """
    prepare_threads()
    torch.empty(LARGEST_TRANSIENT, dtype=torch.uint8)


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
        """The network of the personal model: the federation's own, or what the method makes."""
        network = self.method.network(self.net.module, self.data)
        return self.net if network is self.net.module else FlatModel(network)

    def turn(self, task: Task, private: Private, progress: Progress | None = None) -> Answer:
        """begin → phases of local steps → finish → personal model, in the method's words."""
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
        """Accuracy of the personal model in a round that the device sits out; None: unchanged."""
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
            raise _diverged(turn, "the model that would be sent is not finite")
        moved = farthest(as_numpy(upload), as_numpy(turn.received))
        if moved > LONGEST_STEP:  # no coordinator's step would take it
            raise _diverged(turn, f"a number of the model has moved by {moved:.3g}")
        personal = upload if personal is done.upload else personal.clone()
        score = self.accuracy(personal, self.deployed)
        scalars = {"examples": float(len(self.data.y)), "steps": float(turn.steps), "loss": loss}
        if len(self.data.held_y):
            scalars["personal_accuracy"] = score
        return Answer(upload, {**scalars, **done.scalars}, turn.private, personal, score)

    def accuracy(self, vector: Tensor, net: FlatModel | None = None) -> float:
        """Accuracy of a model on the device's held-out data; `net` if it is of another layout."""
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


class Loop:
    """The phases of one turn."""

    def __init__(self, method: Stack, turn: Turn, progress: Progress | None) -> None:
        self.method = method
        self.turn = turn
        self.progress = progress
        self.sizes = batch_sizes(len(turn.data.y), turn.hyper.batch_size)
        self.done = self.total = 0

    def run(self, phases: Sequence[Phase]) -> float:
        """Train; returns the mean loss of the steps that led to the model."""
        turn = self.turn
        plan = steps_of(phases, turn.hyper.epochs, len(self.sizes))
        self.total = sum(plan)
        batches = self._batches("batches")
        sum_of_losses = 0.0
        with own_randomness(turn.generator("network")):
            for index, (phase, steps) in enumerate(zip(phases, plan, strict=True)):
                turn.phase = phase
                if phase.aside:
                    self._aside(steps)
                    continue
                sum_of_losses += self._phase(steps, batches)
                turn.phase_steps[phase.name] = steps
                goes_on = any(not later.aside for later in phases[index + 1 :])
                turn.ends[phase.name] = turn.net.vector.clone() if goes_on else turn.net.vector
        return sum_of_losses / max(turn.steps, 1)

    def _aside(self, steps: int) -> None:
        """A phase on a vector and streams of its own: the others are as if it were not there."""
        turn, net = self.turn, self.turn.net
        name, start = turn.phase.name, turn.phase.start
        before, done = net.swap((net.vector if start is None else start).clone()), turn.steps
        try:
            with own_randomness(turn.generator(f"network/{name}")):
                self._phase(steps, self._batches(f"batches/{name}"))
        finally:
            turn.ends[name] = net.swap(before)
            turn.steps = done

    def _phase(self, steps: int, batches: Batches) -> float:
        """The steps of one phase; returns the sum of their losses."""
        turn = self.turn
        sum_of_losses = 0.0
        with training_only(turn.net, turn.phase.part):
            step = LocalStep(self.method, turn, batches)
            for model in step.models:
                training_mode(model.module, self.sizes)
            for _ in range(steps):
                loss = self.method.advance(turn, step)
                if not math.isfinite(loss):
                    raise _diverged(turn, f"the loss is {loss}")
                sum_of_losses += loss
                turn.steps += 1
                if step.ends_pass:
                    self.method.epoch_end(turn)
                self._tell(loss)
        return sum_of_losses

    def _batches(self, purpose: str) -> Batches:
        """Shuffled batches for ever."""
        order = self.turn.generator(purpose)
        while self.sizes:
            parts = torch.randperm(sum(self.sizes), generator=order).split(self.sizes)
            yield from ((part, False) for part in parts[:-1])
            yield parts[-1], True

    def _tell(self, loss: float) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, loss)


def batch_sizes(examples: int, batch_size: int) -> list[int]:
    """The batches of a pass; a last one of a single example joins the one before it.

    Batch norm has no statistics of one example.
    """
    full, rest = divmod(examples, batch_size)
    if rest == 1 and full:
        return [batch_size] * (full - 1) + [batch_size + 1]
    return [batch_size] * full + [rest] * (rest > 0)


def steps_of(phases: Sequence[Phase], epochs: int, batches: int) -> list[int]:
    """The steps of each phase: its own epochs, or its share of what the coordinator asks for.

    Shares are rounded down, and the last one gets what is left.
    """
    sharing = [phase for phase in phases if phase.epochs is None]
    left = epochs * batches
    counts: list[int] = []
    for phase in phases:
        if phase.epochs is not None:
            counts.append(phase.epochs * batches)
            continue
        count = left if phase is sharing[-1] else int(phase.share * epochs * batches)
        left -= count
        counts.append(count)
    return counts


def _diverged(turn: Turn, what: str) -> MethodError:
    return MethodError(
        f"device {turn.device}, round {turn.number + 1}, step {turn.steps + 1}: {what}; "
        f"the training diverged: lower the learning rate ({turn.hyper.lr})"
    )
