"""ALA: Zhang et al. 2023, "FedALA: Adaptive local aggregation for personalized federated learning".

`ala` is the module for any method, written last: `fedprox(mu=0.1)+ala`; `fedala` is the paper's
own method, FedAvg with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fededge import ops
from fededge.flat import Layout
from fededge.methods.base import Finish, Follows, Method, Round, forward
from fededge.methods.steps import training_mode
from fededge.models.base import Classifier, channels_last

__all__ = ["Ala", "FedALA"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ala(Method):
    """Begin from what is wanted of the global model: Θ̂ = Θ_i + (Θ - Θ_i) ⊙ W in the top layers.

    Below them Θ̂ is the global model Θ, and running statistics stay those of the device's own Θ_i.
    W is learned on a slice of the device's data by the loss of the whole composition, without
    pulls: until it settles when the device takes part for the second time, in one pass later.

    Attributes:
        eta: the learning rate of W.
        share: of the device's examples that W is learned from.
        layers: how many layers with parameters of their own have a W, from the last one down; `0`
            is none, which leaves everything as it would be without this layer, and `all` is all.
        threshold: W has settled when the losses of the last passes deviate by less.
        window: how many passes those are.
        max_epochs: passes after which W is taken as it is.
        batch_size: of the examples that W is learned from; 0 is that of the training.
    """

    name: ClassVar[str] = "ala"
    # W is there once it has settled for the first time; Θ_i once the device has trained.
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
        counted = self.layers == "all" or self.layers.isdecimal()
        self.require(counted, "layers must be a whole number or 'all'")
        self.require(self.threshold >= 0, "threshold must be at least 0")
        self.require(self.window >= 1, "window must be at least 1")
        self.require(self.max_epochs >= 1, "max_epochs must be at least 1")
        self.require(self.batch_size >= 0, "batch_size must be at least 0")

    def begin(self, r: Round, w: Tensor) -> Tensor:
        top = self._top(r.layout)
        if top.start == top.stop or "local" not in r.private or not r.examples:
            return w
        local = r.private.tensor("local")
        start = torch.cat([w[: top.stop], local[top.stop :]])
        W = r.private.tensor("W") if "W" in r.private else torch.ones_like(w[top])
        mixture = Mixture(r, start, local, W, top, self._batches(r))
        if "W" in r.private:
            mixture.learn(self.eta)
        else:
            self._settle(r, lambda: mixture.learn(self.eta))
        r.memo["W"] = mixture.W
        start[top] = mixture.values
        return start

    def finish(self, r: Round) -> Finish:
        if self.layers == "0" or not r.steps:
            return Finish()
        return Finish(private={"local": r.model, **r.memo})

    def _top(self, layout: Layout) -> slice:
        """Where the parameters of the top layers lie: they are neighbours in the vector."""
        parameters = [entry for entry in layout.entries if entry.trainable]
        starts: dict[str, int] = {}
        for entry in parameters:
            starts.setdefault(entry.name.rpartition(".")[0], entry.offset)
        stop = sum(entry.size for entry in parameters)
        offsets = [*starts.values(), stop]
        count = len(starts) if self.layers == "all" else min(int(self.layers), len(starts))
        return slice(offsets[len(starts) - count], stop)

    def _batches(self, r: Round) -> Sequence[Tensor]:
        """The batches of a contiguous slice of the examples, in their order."""
        count = max(1, int(self.share * r.examples))
        draw = r.generator("slice")
        first = int(torch.randint(r.examples - count + 1, (1,), generator=draw))
        chosen = torch.arange(first, first + count)
        return list(chosen.split(self.batch_size or r.hyper.batch_size))

    def _settle(self, r: Round, epoch: Callable[[], float]) -> None:
        """Repeat until the losses of the last passes differ little, as the authors' code does."""
        losses: list[float] = []
        for _ in range(self.max_epochs):
            losses.append(epoch())
            if len(losses) > self.window and np.std(losses[-self.window :]) < self.threshold:
                return
        log.warning(
            "%s: on %s the weights have not settled after %d passes; they are taken as they are",
            self.name,
            r.device,
            self.max_epochs,
        )


@dataclass(frozen=True)
class FedALA(Ala):
    """FedAvg with ALA.

    Attributes:
        deploy: the device's own model: Θ̂ as it is `initialised`, before the local training, which
            is what the paper reports; or `trained`, as for FedAvg.
    """

    name: ClassVar[str] = "fedala"
    deploy: Literal["initialised", "trained"] = "initialised"

    def personal(self, r: Round) -> Tensor:
        return r.start if self.deploy == "initialised" else r.model

    def refreshed(self, r: Round) -> Tensor | None:
        return self.begin(r, r.received) if self.deploy == "initialised" else None


class Mixture:
    """Θ̂ on a copy of the network, while the W of its top layers is learned.

    What the layers below make of a batch does not change meanwhile: it is computed once. That
    includes a dropout mask of theirs.
    """

    def __init__(
        self,
        r: Round,
        start: Tensor,
        local: Tensor,
        W: Tensor,
        top: slice,
        batches: Sequence[Tensor],
    ) -> None:
        self.r = r
        self.W = W.clone()
        self.local, self.received = local[top], start[top]
        self.batches = batches
        self.below: dict[int, Tensor] = {}
        net = r.net.clone()
        net.load(start)
        training_mode(net.module, [len(batch) for batch in batches])
        self.values = net.vector[top]
        torch.addcmul(self.local, self.received - self.local, self.W, out=self.values)  # eq. 4
        inside = {entry.name for entry in net.layout.entries if entry.offset >= top.start}
        parameters = dict(net.module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in inside)
        self.learned = [parameter for name, parameter in parameters.items() if name in inside]
        self.lower, self.upper = cut(net.module)

    def learn(self, eta: float) -> float:
        """One pass over the slice; returns its last batch's loss."""
        loss = torch.zeros(())
        for number, index in enumerate(self.batches):
            batch = self.r.batch(index)
            loss = self.r.loss(forward(self.upper, self._below(number, batch.x)), batch)
            parts = torch.autograd.grad(loss, self.learned, materialize_grads=True)
            g = torch.cat([part.reshape(-1) for part in parts])
            ops.ala_step_(self.W, self.values, g, self.local, self.received, eta=eta)  # eq. 5, 4
        return float(loss.detach())

    def _below(self, number: int, x: Tensor) -> Tensor:
        if number not in self.below:
            with torch.no_grad():
                self.below[number] = self.lower(channels_last(x))
        return self.below[number]


def cut(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The network in two: the stages below those with a parameter to learn, and the rest."""
    if type(module) is not Classifier:
        return nn.Identity(), module
    body = module.body if isinstance(module.body, nn.Sequential) else nn.Sequential(module.body)
    fixed = [not any(p.requires_grad for p in stage.parameters()) for stage in body]
    count = fixed.index(False) if False in fixed else len(fixed)
    return body[:count], Classifier(body[count:], module.head)
