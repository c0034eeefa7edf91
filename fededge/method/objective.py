"""A method's two effects on local training: its loss (`Objective`), its gradient pull (`Affine`).

Both are sums: the layers of a composition add up without knowing each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fededge import models, ops
from fededge._internal.lazy_torch import Tensor, nn, torch

__all__ = ["Affine", "Labellings", "Objective", "Output", "Term", "forward"]


@dataclass(frozen=True, eq=False)
class Output:
    """A network's output for a batch; `features` are the head's input."""

    logits: Tensor
    features: Tensor


def forward(module: nn.Module, x: Tensor) -> Output:
    """Return logits and features in float32; without a head, the logits are the features too.

    The network computes in the precision of the turn's hardware, losses in float32.
    """
    x = models.channels_last(x)
    with models.autocast(x):
        features = module.features(x) if isinstance(module, models.Classifier) else module(x)
        logits = module.head(features) if isinstance(module, models.Classifier) else features
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits, features = logits.float(), features.float()
    return Output(logits, features)


Term = Callable[[Output, Tensor], Tensor]
"""A batch mean that is added to the loss, from the network's output and one labelling."""

Labellings = Sequence[tuple[Tensor, float]]
"""Labels of a batch and their weight; mixup returns two."""


@dataclass(frozen=True, eq=False)
class Objective:
    """weight · CE(u, y) + CE(u, target) + flat · L1(z, y) + Σ term(out, y), a mean over the batch.

    u = scale ⊙ z + added_scale ⊙ added + shift[y]. Restricted softmax is a scale; balanced softmax,
    FedLC and margins are shifts (one row, or a row per label); FedBalance adds another model's
    logits with their own scale; LfD has a soft target; L1 is FedACD's (`ops.label_loss`);
    distillation is a term. Without a weight or a target, scales, shift and added logits are
    unused.

    Attributes:
        factor: e^shift, if the caller has it already; saves time.
        target: probabilities [batch, classes], times the weight of that part of the loss.
    """

    weight: float = 1.0
    scale: Tensor | None = None
    shift: Tensor | None = None
    added: Tensor | None = None
    terms: tuple[Term, ...] = ()
    flat: float = 0.0
    factor: Tensor | None = None
    target: Tensor | None = None
    added_scale: Tensor | None = None

    def __add__(self, other: Objective) -> Objective:
        """Combine two objectives: weights and scales multiply, the rest adds up."""
        added, added_scale = self._added(other)
        return Objective(
            self.weight * other.weight,
            _join(self.scale, other.scale, torch.mul),
            _join(self.shift, other.shift, torch.add),
            added,
            self.terms + other.terms,
            self.flat + other.flat,
            _join(self._factor(other), other._factor(self), torch.mul),
            _join(self.target, other.target, torch.add),
            added_scale,
        )

    def loss(self, out: Output, y: Tensor) -> Tensor:
        return self.mixed(out, ((y, 1.0),))

    def mixed(self, out: Output, labellings: Labellings) -> Tensor:
        """Return the loss of each labelling, weighted by its share."""
        parts = self._by_labels(out.logits, labellings)
        parts += [_times(share, term(out, y)) for y, share in labellings for term in self.terms]
        return sum(parts[1:], parts[0]) if parts else 0.0 * out.logits.sum()

    def _by_labels(self, z: Tensor, labellings: Labellings) -> list[Tensor]:
        moved = self.target is not None or bool(self.weight)
        if not moved and not self.flat:
            return []
        pairs = [labellings[i : i + 2] for i in range(0, len(labellings), 2)]
        return [self._fused(z, pair, moved) for pair in pairs]

    def _fused(self, z: Tensor, labellings: Labellings, moved: bool) -> Tensor:
        return ops.label_loss(
            z,
            [y for y, _ in labellings],
            [share for _, share in labellings],
            weight=self.weight,
            flat=self.flat,
            soft=1.0,
            scale=self.scale if moved else None,
            shift=self.shift if moved else None,
            factor=self.factor if moved else None,
            added=self.added if moved else None,
            added_scale=self.added_scale if moved else None,
            target=self.target,
        )

    def _added(self, other: Objective) -> tuple[Tensor | None, Tensor | None]:
        """Return the combined added logits and their scale; two are scaled first, then summed."""
        if self.added is None or other.added is None:
            one = other if self.added is None else self
            return one.added, one.added_scale
        mine, others = (_join(one.added, one.added_scale, torch.mul) for one in (self, other))
        return _join(mine, others, torch.add), None

    def _factor(self, other: Objective) -> Tensor | None:
        """Return the factor to combine with `other`'s; None if `other`'s shift lacks one."""
        alone = self.shift is None or other.shift is None or other.factor is not None
        return self.factor if alone else None


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


def _times(factor: float, loss: Tensor) -> Tensor:
    return loss if factor == 1.0 else factor * loss
