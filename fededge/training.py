"""The local loop: a device's turn, from the global model to what it sends. Written once for all.

This is the one place where a method's device half is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fededge import ops
from fededge.errors import MethodError
from fededge.evaluation import accuracy
from fededge.flat import FlatModel
from fededge.methods.base import Affine, Batch, Examples, Hyper, Phase, forward
from fededge.methods.compose import Stack
from fededge.methods.private import Private
from fededge.methods.turn import Turn

__all__ = ["Answer", "Examples", "Task", "Trainer", "prepare_threads"]

Progress = Callable[[int, int, float], None]
"""Told after every step: steps done, steps in all, loss."""

Batches = Iterator[tuple[Tensor, bool]]
"""Which examples come next, and whether a pass over the data ends with them."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a device is asked for: a turn in this round, from this model."""

    seed: int
    number: int
    hyper: Hyper
    received: Tensor
    sent: dict[str, Tensor]


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
        turn = self._turn(task, private)
        phases = self.method.phases(turn)
        turn.phase = phases[0]
        start = self.method.begin(turn)
        turn.start = start if start is task.received else start.clone()
        self.net.load(turn.start)
        loss = self._train(turn, phases, progress)
        done = self.method.finish(turn)
        assert done.upload is not None
        turn.private = Private(done.private)
        personal = self.method.personal(turn)
        upload = done.upload.clone()
        if not torch.isfinite(upload).all():
            raise _diverged(turn, "the model that would be sent is not finite")
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
        )

    def _train(self, turn: Turn, phases: Sequence[Phase], progress: Progress | None) -> float:
        """All phases; returns the mean loss of the steps that led to the model."""
        sizes = batch_sizes(len(self.data.y), turn.hyper.batch_size)
        plan = steps_of(phases, turn.hyper.epochs, len(sizes))
        tell = _teller(sum(plan), progress)
        batches = self._batches(turn, "batches", sizes)
        sum_of_losses = 0.0
        with own_randomness(turn.generator("network")):
            for index, (phase, steps) in enumerate(zip(phases, plan, strict=True)):
                turn.phase = phase
                if phase.aside:
                    self._aside(turn, steps, sizes, tell)
                    continue
                sum_of_losses += self._phase(turn, steps, batches, sizes, tell)
                goes_on = any(not later.aside for later in phases[index + 1 :])
                turn.ends[phase.name] = self.net.vector.clone() if goes_on else self.net.vector
        return sum_of_losses / max(turn.steps, 1)

    def _aside(
        self, turn: Turn, steps: int, sizes: list[int], tell: Callable[[float], None]
    ) -> None:
        """A phase on a vector and streams of its own: the others are as if it were not there."""
        name, start = turn.phase.name, turn.phase.start
        before = self.net.swap((self.net.vector if start is None else start).clone())
        done = turn.steps
        batches = self._batches(turn, f"batches/{name}", sizes)
        try:
            with own_randomness(turn.generator(f"network/{name}")):
                self._phase(turn, steps, batches, sizes, tell)
        finally:
            turn.ends[name] = self.net.swap(before)
            turn.steps = done

    def _phase(
        self,
        turn: Turn,
        steps: int,
        batches: Batches,
        sizes: list[int],
        tell: Callable[[float], None],
    ) -> float:
        """The steps of one phase; returns the sum of their losses."""
        sum_of_losses = 0.0
        with training_only(self.net, turn.phase.part):
            step = LocalStep(self, turn, batches)
            for model in step.models:
                training_mode(model.module, sizes)
            for _ in range(steps):
                loss = self.method.advance(turn, step)
                if not math.isfinite(loss):
                    raise _diverged(turn, f"the loss is {loss}")
                sum_of_losses += loss
                turn.steps += 1
                if step.ends_pass:
                    self.method.epoch_end(turn)
                tell(loss)
        return sum_of_losses

    def _batches(self, turn: Turn, purpose: str, sizes: list[int]) -> Batches:
        """Shuffled batches for ever."""
        order = turn.generator(purpose)
        while sizes:
            parts = torch.randperm(sum(sizes), generator=order).split(sizes)
            yield from ((part, False) for part in parts[:-1])
            yield parts[-1], True


class LocalStep:
    """The network and its companions in one phase: a batch, its gradient, a step along it."""

    def __init__(self, trainer: Trainer, turn: Turn, batches: Batches) -> None:
        self.method = trainer.method
        self.turn = turn
        self.batches = batches
        self.ends_pass = False
        self.models = [trainer.net, *self.method.companions(turn)]
        pulls = [self.method.pull(turn), *([None] * (len(self.models) - 1))]
        pairs = zip(self.models, pulls, strict=True)
        self.optimisers = [Sgd(model, turn.hyper, pull) for model, pull in pairs]

    def batch(self) -> Batch:
        index, self.ends_pass = next(self.batches)
        return self.method.batch(self.turn, self.turn.batch(index))

    def gradient(self, batch: Batch) -> float:
        out = forward(self.turn.net.module, batch.x)
        loss = self.method.loss(self.turn, out, batch)
        for model in self.models:
            model.zero_grad()
        loss.backward()
        self.method.observe(self.turn, out, batch)
        return float(loss.detach())

    def apply(self, lr: float | None = None) -> None:
        for optimiser in self.optimisers:
            optimiser(lr)


class Sgd:
    """SGD with momentum, weight decay and the method's pull, one fused pass over the flat vector.

    A new one per phase: momentum does not outlive the objective that it was gathered under.
    """

    def __init__(self, net: FlatModel, hyper: Hyper, pull: Affine | None) -> None:
        self.net = net
        self.hyper = hyper
        self.pull = pull or Affine()
        mask = net.trainable
        self.mask = None if bool(mask.all()) else mask.to(net.vector.device)
        self.buffer = torch.zeros_like(net.vector) if hyper.momentum else None
        net.bind_grad()

    def __call__(self, lr: float | None = None) -> None:
        ops.sgd_step_(
            self.net.vector,
            self.net.grad,
            self.buffer,
            lr=self.hyper.lr if lr is None else lr,
            momentum=self.hyper.momentum,
            weight_decay=self.hyper.weight_decay,
            kappa=self.pull.kappa,
            anchor=self.pull.anchor,
            bias=self.pull.bias,
            mask=self.mask,
        )


@contextmanager
def own_randomness(generator: torch.Generator) -> Iterator[None]:
    """Let layers that draw from torch's global stream (dropout) draw from this seed instead."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator.initial_seed())
        yield


@contextmanager
def training_only(net: FlatModel, part: tuple[str, ...]) -> Iterator[None]:
    """Freeze all but this part of the network; an empty one is all of it."""
    inside = net.layout.part(*part) if part else torch.ones(net.layout.size)
    starts = {entry.name: entry.offset for entry in net.layout.entries if entry.size}
    frozen = [
        parameter
        for name, parameter in net.module.named_parameters()
        if parameter.requires_grad and name in starts and not inside[starts[name]]
    ]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def training_mode(module: nn.Module, sizes: list[int]) -> None:
    """Training mode; batch norm uses its running statistics where a batch has one example."""
    module.train()
    if 1 in sizes:
        for part in module.modules():
            if isinstance(part, _BatchNorm):
                part.eval()


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


def _teller(total: int, progress: Progress | None) -> Callable[[float], None]:
    done = 0

    def tell(loss: float) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, loss)

    return tell


def _diverged(turn: Turn, what: str) -> MethodError:
    return MethodError(
        f"device {turn.device}, round {turn.number}, step {turn.steps + 1}: {what}; "
        f"the training diverged: lower the learning rate ({turn.hyper.lr})"
    )
