"""Losses of logits [rows, classes] that come with their gradient: one pass computes both.

Each is the mean over the rows, and differentiable by the logits, once. Labels are int64 or int32;
one outside of the classes is an IndexError that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from fededge.ops import reference
from fededge.ops._backend import kernels
from fededge.ops._check import check_labels

__all__ = [
    "backward",
    "distillation",
    "gradient",
    "label_loss",
    "probability_sums_",
    "soft_cross_entropy",
]

ONE = (1.0,)


def label_loss(
    z: Tensor,
    labels: Sequence[Tensor],
    shares: Sequence[float] = ONE,
    *,
    weight: float = 1.0,
    flat: float = 0.0,
    soft: float = 0.0,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    factor: Tensor | None = None,
    added: Tensor | None = None,
    added_scale: Tensor | None = None,
    target: Tensor | None = None,
) -> Tensor:
    """Σ share · (weight · CE(u, y) + soft · CE(u, target) + flat · L1(z, y)) over the labellings.

    u = scale ⊙ z + added_scale ⊙ added + shift[y]. L1 spreads the probability p = softmax(z) of the
    wrong classes: Σ_{k≠y} p_k log((C-1) p_k / (1 - p_y)), FedACD's eq. 7.

    Args:
        labels: one labelling [rows] or two (mixup); none if there is only a target.
        shares: how much each labelling counts.
        scale: of each class [classes].
        shift: one row for all labels [classes], or a row for each [classes, classes]; may be -inf.
        factor: e^shift, for a caller who has it at hand: then `flat`, and two labellings with a
            shift by label, need no exponentials of their own.
        added: other logits [rows, classes], which get their gradient too.
        added_scale: of each class of those [classes].
        target: probabilities [rows, classes]; they may sum to anything.
    """
    implementation = kernels(z)
    if implementation is reference:
        check_labels("label_loss", z, labels)
    out: Tensor = implementation.label_loss(
        z, labels, shares, weight, flat, soft, scale, shift, factor, added, added_scale, target
    )
    return out


def soft_cross_entropy(z: Tensor, target: Tensor) -> Tensor:
    """-Σ target · log softmax(z); dz = softmax(z) - target, if the target sums to 1."""
    return label_loss(z, (), (), soft=1.0, target=target)


def distillation(
    z: Tensor, teacher: Tensor, temperature: float = 1.0, without: Tensor | None = None
) -> Tensor:
    """T² · KL(softmax(teacher/T) ‖ softmax(z/T)); dz = T · (softmax(z/T) - softmax(teacher/T)).

    Args:
        without: labels whose class is left out of both softmaxes (FedNTD).
    """
    implementation = kernels(z)
    if implementation is reference and without is not None:
        check_labels("distillation", z, (without,))
    out: Tensor = implementation.distillation(z, teacher, temperature, without)
    return out


def probability_sums_(
    num: Tensor, den: Tensor, z: Tensor, labels: Sequence[Tensor], shares: Sequence[float] = ONE
) -> None:
    """num[y] += share · softmax(z), den[y] += share: sums whose quotient is a probability matrix.

    Args:
        num: float64 [classes, classes].
        den: float64 [classes].
        labels: one labelling [rows] or two (mixup).
        shares: how much each labelling counts.
    """
    implementation = kernels(z)
    if implementation is reference:
        check_labels("probability_sums_", z, labels)
    implementation.probability_sums_(num, den, z, labels, shares)


def backward(loss: Tensor) -> None:
    """Add a loss's gradient to the `.grad` of all that it was computed from, as its method does.

    `loss.backward()` spends more time in Python than a small loss takes altogether.
    """
    _check_loss("backward", loss)
    _engine(loss).backward(loss)


def gradient(loss: Tensor, by: Tensor) -> Tensor:
    """A loss's gradient by one tensor, zeros where it does not depend on it; no `.grad` changes."""
    _check_loss("gradient", loss)
    found: Tensor = _engine(loss).gradient(loss, by)
    return found


def _check_loss(op: str, loss: Tensor) -> None:
    if loss.numel() != 1:
        raise ValueError(f"{op}: the loss has shape {list(loss.shape)}, it must be one number")
    if not loss.requires_grad:
        raise ValueError(f"{op}: nothing that the loss was computed from requires a gradient")


def _engine(loss: Tensor) -> ModuleType:
    return reference if torch.compiler.is_compiling() else kernels(loss)
