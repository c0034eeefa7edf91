"""The pieces that a local step is made of, and the state the network is in while they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fededge import models, ops
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.hardware import Precision
from fededge.method.base import Affine, Batch, Hyper, Output, forward
from fededge.method.stack import Stack
from fededge.method.turn import Turn
from fededge.training.loss_scale import LossScale
from fededge.training.out_of_memory import halved, without_shortage
from fededge.training.placement import Fetched

__all__ = ["Batches", "LocalStep", "Sgd", "own_randomness", "training_mode", "training_only"]

Batches = Iterator[tuple[Fetched, bool]]
"""The examples that come next, and whether a pass over the data ends with them."""


class Pass(NamedTuple):
    """A forward and backward pass: the examples, the output, and their share of the loss."""

    batch: Batch
    out: Output
    loss: Tensor


class LocalStep:
    """The network and its companions in one phase: a batch, its gradient, a step along it."""

    def __init__(self, method: Stack, turn: Turn, batches: Batches) -> None:
        self.method = method
        self.turn = turn
        self.batches = batches
        self.ends_pass = False
        companions = method.companions(turn)
        self.models = [turn.net, *companions]
        self.network = models.for_training(turn.net.module)
        pull = method.pull(turn) or Affine()
        turn.kappas[turn.phase.name] = pull.kappa
        self.optimisers = [Sgd(turn.net, turn.hyper, pull)]
        self.optimisers += [Sgd(model, turn.hyper) for model in companions]
        lowered = turn.precision is Precision.FLOAT16
        self.scale = LossScale(turn.net.vector.device) if lowered else None

    def batch(self) -> Batch:
        (index, raw), self.ends_pass = next(self.batches)
        return self.method.batch(self.turn, self.turn.batch(index, raw))

    def gradient(self, batch: Batch) -> Tensor:
        passes = self._fitting(batch)
        if self.scale is not None:
            gradients = [model.grad for model in self.models]
            self.scale.unscale_(gradients)
            while not self.scale.find():
                passes = self._fitting(batch)
                self.scale.unscale_(gradients)
        if self.turn.hyper.clip_norm:
            for model in self.models:
                clip_(model.grad, self.turn.hyper.clip_norm)
        for done in passes:
            self.method.observe(self.turn, done.out, done.batch)
        return sum((done.loss for done in passes[1:]), passes[0].loss)

    def _fitting(self, batch: Batch) -> list[Pass]:
        """Make the gradient of a batch, of smaller parts where memory runs out."""
        passes: list[Pass] = []
        while not passes:
            with without_shortage():
                passes = self._passes(batch)
            if not passes:  # only here: the error's traceback kept the tensors alive
                self.turn.micro_batch = halved(self.method, self.turn, self.models, batch)
        return passes

    def _passes(self, batch: Batch) -> list[Pass]:
        """Make the gradient of a batch, in one pass or of parts that fit into memory."""
        count = len(batch.x)
        size = self.turn.micro_batch or count
        parts = [batch] if size >= count else batch.split(size)
        return [self._pass(part, len(part.x) / count, part is parts[0]) for part in parts]

    def _pass(self, part: Batch, share: float, first: bool) -> Pass:
        """Add a part's gradient, by its share of the batch."""
        out = forward(self.network, part.x)
        loss = self.method.loss(self.turn, out, part)
        if not loss.requires_grad:
            raise MethodError(f"phase '{self.turn.phase.name}' has nothing to train: all is frozen")
        if first:
            for model in self.models:
                model.zero_grad()
        loss = loss if share == 1 else share * loss
        ops.backward(loss if self.scale is None else self.scale.scaled(loss))
        return Pass(part, out, loss.detach())

    def check_taken(self) -> None:
        """Refuse a phase in which every gradient overflowed, whatever the scale."""
        if self.scale is not None and not float(self.scale.taken):
            turn = self.turn
            raise MethodError(
                f"device {turn.device}, round {turn.number + 1}: every gradient overflows float16; "
                'set precision = "bfloat16" or "float32"'
            )

    def apply(self, lr: float | None = None) -> None:
        for optimiser in self.optimisers:
            optimiser(lr, self.scale)


class Sgd:
    """SGD with momentum, weight decay and the method's pull, one fused pass over the flat vector.

    A new one per phase: momentum does not outlive the objective that it was gathered under.
    """

    def __init__(self, net: FlatModel, hyper: Hyper, pull: Affine | None = None) -> None:
        self.net = net
        self.hyper = hyper
        self.pull = pull or Affine()
        span = net.trained
        self.span = slice(0, net.layout.size) if span is None else span
        self.mask = net.trainable.to(net.vector.device) if span is None else None
        self.buffer = torch.zeros_like(net.vector[self.span]) if hyper.momentum else None
        net.bind_grad()

    def __call__(self, lr: float | None = None, scale: LossScale | None = None) -> None:
        if scale is None:
            self._step(lr)
            return
        changed = [self.net.vector[self.span], *([] if self.buffer is None else [self.buffer])]
        before = [vector.clone() for vector in changed]
        self._step(lr)
        for vector, old in zip(changed, before, strict=True):
            scale.keep_(vector, old)

    def _step(self, lr: float | None) -> None:
        anchor, bias = self.pull.anchor, self.pull.bias
        ops.sgd_step_(
            self.net.vector[self.span],
            self.net.grad[self.span],
            self.buffer,
            lr=self.hyper.lr if lr is None else lr,
            momentum=self.hyper.momentum,
            weight_decay=self.hyper.weight_decay,
            kappa=self.pull.kappa,
            anchor=None if anchor is None else anchor[self.span],
            bias=None if bias is None else bias[self.span],
            mask=self.mask,
        )


def clip_(gradient: Tensor, norm: float) -> None:
    """Scale a gradient down to this length; the margin is that of `clip_grad_norm_` in torch."""
    length = torch.linalg.vector_norm(gradient).double()
    gradient.mul_((norm / (length + 1e-6)).clamp(max=1))  # NaN stays: it must not pass as a number


@contextmanager
def own_randomness(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Let layers that draw from torch's global streams (dropout) draw from this seed instead."""
    seed = generator.initial_seed()
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
        return
    with torch.random.fork_rng(devices=[device], device_type=device.type):
        torch.default_generator.manual_seed(seed)
        torch.get_device_module(device.type).manual_seed(seed)
        yield


@contextmanager
def training_only(net: FlatModel, part: tuple[str, ...]) -> Iterator[None]:
    """Freeze all but this part of the network; an empty one is all of it."""
    inside = {entry.name for entry in net.layout.inside(*part)}
    frozen = [
        parameter
        for name, parameter in net.module.named_parameters()
        if part and parameter.requires_grad and name not in inside
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
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()
