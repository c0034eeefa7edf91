"""The two ways in which a method bends local training: its loss, and a pull on the gradient.

Both are sums, so that layers of a composition add up without knowing of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.models.base import Classifier, channels_last

__all__ = ["Affine", "Objective", "Output", "Term", "forward"]


@dataclass(frozen=True, eq=False)
class Output:
    """What the network made of a batch; `features` go into the last layer."""

    logits: Tensor
    features: Tensor


def forward(module: nn.Module, x: Tensor) -> Output:
    """Logits and the features before the head; a network without a head has its logits for both."""
    x = channels_last(x)
    if isinstance(module, Classifier):
        features = module.features(x)
        return Output(module.head(features), features)
    logits = module(x)
    return Output(logits, logits)


Term = Callable[[Output, Tensor], Tensor]
"""A batch mean that is added to the loss, from the network's output and one labelling."""


@dataclass(frozen=True, eq=False)
class Objective:
    """weight · CE(scale ⊙ z + added + shift[y], y) + Σ term(out, y), a mean over the batch.

    Restricted softmax is a scale; balanced softmax, FedLC and margins are shifts (one row, or a
    row per label); FedBalance adds another model's logits; distillation is a term. A weight of 0
    leaves the loss to the terms.
    """

    weight: float = 1.0
    scale: Tensor | None = None
    shift: Tensor | None = None
    added: Tensor | None = None
    terms: tuple[Term, ...] = ()

    def __add__(self, other: Objective) -> Objective:
        """Both at once: weights and scales multiply, shifts and added logits sum, terms join."""
        return Objective(
            self.weight * other.weight,
            _join(self.scale, other.scale, torch.mul),
            _join(self.shift, other.shift, torch.add),
            _join(self.added, other.added, torch.add),
            self.terms + other.terms,
        )

    def loss(self, out: Output, y: Tensor) -> Tensor:
        parts = [self._cross_entropy(out.logits, y)] if self.weight else []
        parts += [term(out, y) for term in self.terms]
        return sum(parts[1:], parts[0]) if parts else 0.0 * out.logits.sum()

    def _cross_entropy(self, z: Tensor, y: Tensor) -> Tensor:
        if self.scale is not None:
            z = self.scale * z
        if self.added is not None:
            z = z + self.added
        if self.shift is not None:
            z = z + (self.shift[y] if self.shift.dim() == 2 else self.shift)
        loss = F.cross_entropy(z, y)
        return loss if self.weight == 1.0 else self.weight * loss


@dataclass(frozen=True, eq=False)
class Affine:
    """A correction of the gradient: g ← g + kappa · (w - anchor) + bias."""

    kappa: float = 0.0
    anchor: Tensor | None = None
    bias: Tensor | None = None

    def __add__(self, other: Affine) -> Affine:
        """κ₁(w - a₁) + κ₂(w - a₂) = (κ₁ + κ₂)(w - a₁) + κ₂(a₁ - a₂): one pull and a bias."""
        bias = _join(self.bias, other.bias, torch.add)
        if self.anchor is None or other.anchor is None:
            anchor = other.anchor if self.anchor is None else self.anchor
            return Affine(self.kappa + other.kappa, anchor, bias)
        if self.anchor is not other.anchor:
            bias = _join(bias, other.kappa * (self.anchor - other.anchor), torch.add)
        return Affine(self.kappa + other.kappa, self.anchor, bias)


def _join(
    a: Tensor | None, b: Tensor | None, both: Callable[[Tensor, Tensor], Tensor]
) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return both(a, b)
