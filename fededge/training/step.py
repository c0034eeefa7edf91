"""The pieces that a local step is made of, and the state the network is in while they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fededge import models, ops
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.method.base import Affine, Batch, Hyper, forward
from fededge.method.stack import Stack
from fededge.method.turn import Turn

__all__ = ["Batches", "LocalStep", "Sgd", "own_randomness", "training_mode", "training_only"]

Batches = Iterator[tuple[Tensor, bool]]
"""Which examples come next, and whether a pass over the data ends with them."""


class LocalStep:
    """The network and its companions in one phase: a batch, its gradient, a step along it."""

    def __init__(self, method: Stack, turn: Turn, batches: Batches) -> None:
        self.method = method
        self.turn = turn
        self.batches = batches
        self.ends_pass = False
        companions = method.companions(turn)
        self.models = [turn.net, *companions]
        self.network = models.trained(turn.net.module)
        pull = method.pull(turn) or Affine()
        turn.kappas[turn.phase.name] = pull.kappa
        self.optimisers = [Sgd(turn.net, turn.hyper, pull)]
        self.optimisers += [Sgd(model, turn.hyper) for model in companions]

    def batch(self) -> Batch:
        index, self.ends_pass = next(self.batches)
        return self.method.batch(self.turn, self.turn.batch(index))

    def gradient(self, batch: Batch) -> float:
        out = forward(self.network, batch.x)
        loss = self.method.loss(self.turn, out, batch)
        if not loss.requires_grad:
            raise MethodError(f"phase '{self.turn.phase.name}' has nothing to train: all is frozen")
        for model in self.models:
            model.zero_grad()
        ops.backward(loss)
        if self.turn.hyper.clip_norm:
            for model in self.models:
                clip_(model.grad, self.turn.hyper.clip_norm)
        self.method.observe(self.turn, out, batch)
        return float(loss.detach())

    def apply(self, lr: float | None = None) -> None:
        for optimiser in self.optimisers:
            optimiser(lr)


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

    def __call__(self, lr: float | None = None) -> None:
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
    scale = norm / (float(torch.linalg.vector_norm(gradient)) + 1e-6)
    if not scale >= 1:  # NaN too: a gradient that is none must not pass as one
        gradient.mul_(scale)


@contextmanager
def own_randomness(generator: torch.Generator) -> Iterator[None]:
    """Let layers that draw from torch's global stream (dropout) draw from this seed instead."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator.initial_seed())
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
