"""The local loop: a device's turn, from the global model to what it sends. Written once for all.

This is the one place where a method's device half is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fededge import ops
from fededge.evaluation import accuracy
from fededge.flat import FlatModel
from fededge.methods.base import Affine, Batch, Hyper, Output, Phase, Round
from fededge.methods.compose import Stack
from fededge.methods.private import Private

__all__ = ["Answer", "Examples", "Task", "Trainer", "prepare_threads"]

Progress = Callable[[int, int, float], None]
"""Told after every step: steps done, steps in all, loss."""


@dataclass(frozen=True)
class Examples:
    """A device's own data: raw inputs and labels, for training and held out."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    classes: int

    @property
    def counts(self) -> Tensor:
        return torch.bincount(self.y, minlength=self.classes)


@dataclass(frozen=True)
class Task:
    """What a device is asked for: a turn in this round, from this model."""

    seed: int
    number: int
    hyper: Hyper
    received: Tensor
    sent: dict[str, Tensor]


@dataclass(frozen=True)
class Answer:
    """What a turn gives: the first two leave the device, the others do not."""

    upload: Tensor
    scalars: dict[str, float]
    private: Private
    personal: Tensor
    personal_accuracy: float


def prepare_threads() -> None:
    """Small models train fastest with one thread a process; a fleet simulation has one each."""
    torch.set_num_threads(1)


@dataclass
class Trainer:
    """A device's network, data and method, ready to take turns."""

    device: str
    net: FlatModel
    preprocess: nn.Module
    data: Examples
    method: Stack

    def turn(self, task: Task, private: Private, progress: Progress | None = None) -> Answer:
        """begin → phases of local steps → finish → personal model, in the method's words."""
        r = Round(
            seed=task.seed,
            number=task.number,
            device=self.device,
            hyper=task.hyper,
            counts=self.data.counts,
            received=task.received,
            sent=task.sent,
            private=private,
            net=self.net,
        )
        r.start = self.method.begin(r).clone()
        self.net.load(r.start)
        loss = self._train(r, progress)
        done = self.method.finish(r)
        assert done.upload is not None
        kept = Private(done.private)
        personal = self.method.personal(replace(r, private=kept))
        scalars = {"examples": float(r.examples), "steps": float(r.steps), "loss": loss}
        held_accuracy = self.accuracy(personal)
        if len(self.data.held_y):
            scalars["personal_accuracy"] = held_accuracy
        scalars |= done.scalars
        return Answer(done.upload, scalars, kept, personal, held_accuracy)

    def accuracy(self, vector: Tensor) -> float:
        """Accuracy of a model of this layout on the device's held-out data."""
        before = self.net.swap(vector)
        try:
            return accuracy(self.net.module, self.preprocess, self.data.held_x, self.data.held_y)
        finally:
            self.net.swap(before)

    def _train(self, r: Round, progress: Progress | None) -> float:
        """All phases; returns the mean loss of their steps."""
        order = r.generator("batches")
        # Layers that draw numbers of their own (dropout) draw them from torch's global stream.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(r.generator("network").initial_seed())
            batches = self._batches(r, order)
            return self._phases(r, batches, progress)

    def _phases(self, r: Round, batches: Iterator[Tensor], progress: Progress | None) -> float:
        total = r.hyper.epochs * len(batch_sizes(len(self.data.y), r.hyper.batch_size))
        phases = list(self.method.phases(r))
        sum_of_losses = 0.0
        self.net.module.train()
        for phase, steps in zip(phases, shares(phases, total), strict=True):
            r.phase = phase
            step = Sgd(self.net, r.hyper, self.method.pull(r))
            for _ in range(steps):
                loss = self._step(r, next(batches), step)
                sum_of_losses += loss
                r.steps += 1
                if progress is not None:
                    progress(r.steps, total, loss)
            if phase.snapshot:
                r.snapshot = r.model.clone()
        return sum_of_losses / max(r.steps, 1)

    def _step(self, r: Round, index: Tensor, step: Sgd) -> float:
        inputs = self.preprocess(self.data.x[index])
        batch = self.method.batch(r, Batch(inputs, ((self.data.y[index], 1.0),)))
        loss = self.method.loss(r, forward(self.net.module, batch.x), batch)
        self.net.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        step()
        return float(loss.detach())

    def _batches(self, r: Round, order: torch.Generator) -> Iterator[Tensor]:
        """Shuffled batches for ever; the method hears of the end of each pass."""
        count = len(self.data.y)
        while count:
            shuffled = torch.randperm(count, generator=order)
            yield from shuffled.split(batch_sizes(count, r.hyper.batch_size))
            self.method.epoch_end(r)


class Sgd:
    """SGD with momentum, weight decay and the method's pull, one fused pass over the flat vector.

    A new one per phase: momentum does not outlive the objective that it was gathered under.
    """

    def __init__(self, net: FlatModel, hyper: Hyper, pull: Affine | None) -> None:
        self.net = net
        self.hyper = hyper
        self.pull = pull or Affine()
        self.mask = net.layout.trainable.to(net.vector.device)
        self.buffer = torch.zeros_like(net.vector) if hyper.momentum else None

    def __call__(self) -> None:
        ops.sgd_step_(
            self.net.vector,
            self.net.grad,
            self.buffer,
            lr=self.hyper.lr,
            momentum=self.hyper.momentum,
            weight_decay=self.hyper.weight_decay,
            kappa=self.pull.kappa,
            anchor=self.pull.anchor,
            bias=self.pull.bias,
            mask=self.mask,
        )


def forward(module: nn.Module, x: Tensor) -> Output:
    """Logits and the features before the last layer; a network without a head has no features."""
    if hasattr(module, "features") and hasattr(module, "head"):
        features = module.features(x)
        return Output(module.head(features), features)
    logits = module(x)
    return Output(logits, logits)


def batch_sizes(examples: int, batch_size: int) -> list[int]:
    """The batches of a pass. A last one of a single example joins the one before it: batch norm
    has no statistics of one example."""
    full, rest = divmod(examples, batch_size)
    if rest == 1 and full:
        return [batch_size] * (full - 1) + [batch_size + 1]
    return [batch_size] * full + [rest] * (rest > 0)


def shares(phases: list[Phase], total: int) -> list[int]:
    """Split the steps: each phase its share rounded down, the last one what is left."""
    counts = [int(phase.share * total) for phase in phases[:-1]]
    return [*counts, total - sum(counts)]
