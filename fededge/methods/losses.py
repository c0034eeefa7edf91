"""Losses that several methods share, each one function of tensors and a mean over the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["distillation", "mmd", "soft_cross_entropy"]

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
LEAST_BANDWIDTH = 1e-8


def distillation(z: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL(softmax(teacher/T) ‖ softmax(z/T)); dz = T · (softmax(z/T) - softmax(teacher/T))."""
    student, target = (a.div(temperature).log_softmax(1) for a in (z, teacher))
    divergence = F.kl_div(student, target, reduction="batchmean", log_target=True)
    return temperature**2 * divergence


def soft_cross_entropy(z: Tensor, target: Tensor) -> Tensor:
    """-Σ target · log softmax(z); dz = softmax(z) - target, if the target sums to 1."""
    return -(target * z.log_softmax(1)).sum(1).mean()


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples [B, …] under five Gaussian kernels.

    mean k(x, x') + mean k(y, y') - 2 mean k(x, y), k = Σ exp(-d²/b). The bandwidths b are multiples
    of the mean squared distance of two examples, which is held fixed.
    """
    both = torch.cat([x, y]).flatten(1)
    # By differences: |a|² + |b|² - 2ab would lose the small distances in float32.
    square = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()
    pairs = len(both) * (len(both) - 1)
    b = square.detach().sum() / pairs + LEAST_BANDWIDTH
    k = torch.stack([(-square / (b * m)).exp() for m in BANDWIDTHS]).sum(0)
    n = len(x)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()
