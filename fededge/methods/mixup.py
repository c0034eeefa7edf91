"""mixup: Zhang et al. 2018, "mixup: beyond empirical risk minimization"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fededge import models
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import MethodError
from fededge.method.base import Batch, Method, TurnView

__all__ = ["Mixup"]

TEXTS = "mixup can mix pixels, but not texts: leave it out"


@dataclass(frozen=True)
class Mixup(Method):
    """Train on mixtures of two examples; a layer for any method: `fedacd+mixup`.

    Each input of a batch is mixed with another of the same batch, all with the same m:
    x ← m x_a + (1 - m) x_b. The loss is m of label y_a's and 1 - m of label y_b's.

    Attributes:
        alpha: m is drawn from Beta(alpha, alpha): the smaller, the less is mixed. 1 is the mixup
            paper's value for CIFAR-10, which costs federations of few rounds some accuracy.
    """

    name: ClassVar[str] = "mixup"
    alpha: float = 0.2

    def __post_init__(self) -> None:
        self.require(self.alpha > 0, "alpha must be above 0")

    def needs(self, net: nn.Module) -> None:
        if models.takes_texts(net):
            raise MethodError(TEXTS)

    def batch(self, r: TurnView, batch: Batch) -> Batch:
        if not batch.x.is_floating_point():
            raise MethodError(TEXTS)
        m = self._share(r)
        other = self._partners(r, len(batch.x))
        return Batch(
            torch.lerp(batch.x[other], batch.x, m),
            tuple((y, m * share) for y, share in batch.targets)
            + tuple((y[other], (1 - m) * share) for y, share in batch.targets),
        )

    def _partners(self, r: TurnView, count: int) -> Tensor:
        """Return the partners of this batch; those of an epoch reach the device in one copy."""
        drawn = r.memo.setdefault(r.phase.name if r.phase.aside else "", [])
        if not drawn:
            stream = r.generator("partners")
            sizes = list(r.ahead) or [count]
            orders = [torch.randperm(size, generator=stream) for size in sizes]
            drawn += r.moved(torch.cat(orders)).split(sizes)
        partners: Tensor = drawn.pop(0)
        return partners

    def _share(self, r: TurnView) -> float:
        """Draw m ~ Beta(α, α), with numpy: torch draws it from its global stream only."""
        seed = torch.randint(2**63 - 1, (), generator=r.generator("shares"))
        return float(np.random.default_rng(int(seed)).beta(self.alpha, self.alpha))
