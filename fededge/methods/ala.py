"""ALA: Zhang et al. 2023, "FedALA: Adaptive local aggregation for personalized federated learning".

`ala` is the module for any method, written last: `fedprox(mu=0.1)+ala`; `fedala` is the paper's
own method, FedAvg with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fededge import models, ops
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.flat import FlatModel, Layout
from fededge.method.base import Batch, Finish, Follows, Method, Output, TurnView, forward
from fededge.method.teacher import INFERENCE_BATCH
from fededge.training.step import training_mode

__all__ = ["Ala", "FedALA"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ala(Method):
    """Start from a learned mix of local and global model: Θ̂ = Θ_i + (Θ - Θ_i) ⊙ W in top layers.

    Below them Θ̂ is the global model Θ. Running statistics are those of the device's own Θ_i.
    W is learned on a slice of the device's data, by the loss of the whole composition without
    pulls: until it converges in the device's second turn, for one epoch in later turns.

    Attributes:
        eta: the learning rate of W.
        share: the share of the device's examples that W is learned from.
        layers: the number of layers with a W, from the last one down; `0` is `all`, as in the
            authors' code, and `none` switches this method off.
        threshold: W has converged when the losses of the last epochs deviate by less.
        window: the number of these epochs.
        max_epochs: the most epochs; W is then used without convergence.
        batch_size: the batch size while W is learned; 0: that of the training.
    """

    name: ClassVar[str] = "ala"
    # Θ_i exists after the device's first turn, W after the first time that it was learned.
    keeps: ClassVar[Mapping[str, Follows]] = {"local": "training", "W": "training"}
    eta: float = 1.0
    share: float = 0.8
    layers: str = "1"
    threshold: float = 0.1
    window: int = 10
    max_epochs: int = 100
    batch_size: int = 0

    def __post_init__(self) -> None:
        self.require(self.eta >= 0, "eta must be at least 0")
        self.require(0 < self.share <= 1, "share must lie above 0 and be at most 1")
        counted = self.layers in ("all", "none") or self.layers.isdecimal()
        self.require(counted, "layers must be a whole number, 'all' or 'none'")
        self.require(self.threshold >= 0, "threshold must be at least 0")
        self.require(self.window >= 1, "window must be at least 1")
        self.require(self.max_epochs >= 1, "max_epochs must be at least 1")
        self.require(self.batch_size >= 0, "batch_size must be at least 0")

    def begin(self, r: TurnView, w: Tensor) -> Tensor:
        top = self._top(r.layout)
        if top.start == top.stop or "local" not in r.private or not r.examples:
            return w
        local = r.private.tensor("local")
        start = torch.cat([w[: top.stop], local[top.stop :]])
        W = r.private.tensor("W") if "W" in r.private else torch.ones_like(w[top])
        index = self._batches(r)
        with training_top(r.net, start.clone(), top, [len(batch) for batch in index]):
            mixture = Mixture(r, top, local, W, index)
            if "W" in r.private:
                mixture.learn(self.eta)
            else:
                self._converge(r, lambda: mixture.learn(self.eta))
        r.memo["W"] = mixture.W
        start[top] = mixture.values
        return start

    def finish(self, r: TurnView) -> Finish:
        if self.layers == "none" or not r.steps:
            return Finish()
        return Finish(private={"local": r.model, **r.memo})

    def _top(self, layout: Layout) -> slice:
        """Return the span of the top layers' parameters, which are adjacent in the vector."""
        parameters = [entry for entry in layout.entries if entry.trainable]
        starts: dict[str, int] = {}
        for entry in parameters:
            starts.setdefault(entry.name.rpartition(".")[0], entry.offset)
        stop = sum(entry.size for entry in parameters)
        if self.layers == "none":
            return slice(stop, stop)
        count = 0 if self.layers == "all" else int(self.layers)
        return slice([*starts.values()][-count:][0], stop)

    def _batches(self, r: TurnView) -> Sequence[Tensor]:
        """Return the positions of a random contiguous slice in batches, on the host."""
        count = max(1, int(self.share * r.examples))
        draw = r.generator("slice")
        first = int(torch.randint(r.examples - count + 1, (1,), generator=draw))
        chosen = torch.arange(first, first + count)
        return list(chosen.split(self.batch_size or r.hyper.batch_size))

    def _converge(self, r: TurnView, epoch: Callable[[], float]) -> None:
        """Repeat the epoch until the last losses deviate little, as the authors' code does."""
        losses: list[float] = []
        for _ in range(self.max_epochs):
            losses.append(epoch())
            if len(losses) > self.window and np.std(losses[-self.window :]) < self.threshold:
                return
        log.warning(
            "%s: on %s the weights W have not converged after %d epochs; used as they are",
            self.name,
            r.device,
            self.max_epochs,
        )


@dataclass(frozen=True)
class FedALA(Ala):
    """FedAvg with ALA.

    Attributes:
        deploy: the personal model: Θ̂ before local training (`initialised`), which the paper
            reports, or the model after it (`trained`), as for FedAvg.
    """

    name: ClassVar[str] = "fedala"
    deploy: Literal["initialised", "trained"] = "initialised"

    def personal(self, r: TurnView) -> Tensor:
        return r.start if self.deploy == "initialised" else r.model

    def refreshed(self, r: TurnView) -> Tensor | None:
        return self.begin(r, r.received) if self.deploy == "initialised" else None


class Mixture:
    """Θ̂ in the network while the W of its top layers is learned.

    The outputs of the layers below do not change meanwhile: they are computed once, dropout
    included.
    """

    def __init__(
        self, r: TurnView, top: slice, local: Tensor, W: Tensor, index: Sequence[Tensor]
    ) -> None:
        self.r = r
        self.W = W.clone()
        self.values = r.net.vector[top]
        self.local, self.received = local[top], self.values.clone()
        torch.addcmul(self.local, self.received - self.local, self.W, out=self.values)  # eq. 4
        lower, self.upper = split_at_top(r.net.module)
        self.learned = [p for p in self.upper.parameters() if p.requires_grad]
        if is_linear_head(self.upper):
            self.head, self.g = self.upper.get_submodule("head"), torch.empty_like(self.W)
            self.slope = self.g[: self.learned[0].numel()].view_as(self.learned[0])
            self.offset = self.g[self.learned[0].numel() :]
        features = lower_features(r, lower, index)
        moved = r.moved(torch.cat(list(index))).split([len(batch) for batch in index])
        self.batches = list(zip(map(r.lazy_batch, moved, index), features, strict=True))

    def learn(self, eta: float) -> float:
        """Run one epoch over the slice; return its last batch's loss."""
        linear = is_linear_head(self.upper)
        gradient = self._head_gradient if linear else self._autograd_gradient
        loss = torch.zeros(())
        for batch, features in self.batches:
            loss, g = gradient(features, batch)
            ops.ala_step_(self.W, self.values, g, self.local, self.received, eta=eta)  # eq. 5, 4
        return float(loss.detach())

    def _autograd_gradient(self, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient by the parameters of the top layers."""
        loss = self.r.loss(forward(self.upper, x), batch)
        parts = torch.autograd.grad(loss, self.learned, materialize_grads=True)
        return loss, torch.cat([part.reshape(-1) for part in parts])

    def _head_gradient(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the same for a linear head z = Ax + b: dL/dA = (dL/dz)ᵀx, dL/db = Σ dL/dz."""
        with torch.no_grad():
            z = self.head(features)
        loss = self.r.loss(Output(z.requires_grad_(), features), batch)
        dz = ops.gradient(loss, z)
        torch.mm(dz.t(), features, out=self.slope)
        if len(self.offset):
            torch.sum(dz, 0, out=self.offset)
        return loss, self.g


@contextmanager
def training_top(net: FlatModel, vector: Tensor, top: slice, sizes: list[int]) -> Iterator[None]:
    """Give the network these values and train only its top layers; restore it afterwards."""
    inside = {entry.name for entry in net.layout.entries if entry.offset >= top.start}
    parameters = dict(net.module.named_parameters())
    before = [(parameter, parameter.requires_grad) for parameter in parameters.values()]
    values = net.swap(vector)
    try:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in inside)
        training_mode(net.module, sizes)
        yield
    finally:
        for parameter, learned in before:
            parameter.requires_grad_(learned)
        net.swap(values)


def split_at_top(module: nn.Module) -> tuple[nn.Sequential, nn.Module]:
    """Split the network below the first stage with a trainable parameter."""
    if type(module) is not models.Classifier:
        return nn.Sequential(), module
    body = module.body if isinstance(module.body, nn.Sequential) else nn.Sequential(module.body)
    fixed = [not any(p.requires_grad for p in stage.parameters()) for stage in body]
    count = fixed.index(False) if False in fixed else len(fixed)
    return body[:count], models.Classifier(body[count:], module.head)


def is_linear_head(upper: nn.Module) -> bool:
    """Return True if the module is a linear head alone."""
    if type(upper) is not models.Classifier:
        return False
    return type(upper.head) is nn.Linear and not list(upper.body.children())


def lower_features(r: TurnView, lower: nn.Sequential, index: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the lower layers' outputs for each batch of the slice."""
    x = r.data.x[int(index[0][0]) : int(index[-1][-1]) + 1]
    sizes = [len(batch) for batch in index]
    quick = models.for_inference(lower)
    with torch.no_grad():
        parts = x.split(INFERENCE_BATCH if models.batch_independent(lower) else sizes)
        made = [quick(models.channels_last(r.turn.preprocess(r.moved(part)))) for part in parts]
        split: Sequence[Tensor] = torch.cat(made).split(sizes)
    return split
