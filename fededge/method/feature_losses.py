"""Losses on features; losses on logits are ops (`fededge.ops.losses`)."""

from __future__ import annotations

from fededge._internal.lazy_torch import Tensor, torch

__all__ = ["mmd"]

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
LEAST_BANDWIDTH = 1e-8


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two samples [B, …] under five Gaussian kernels.

    mean k(x, x') + mean k(y, y') - 2 mean k(x, y), k = Σ exp(-d²/b). The bandwidths b are multiples
    of the mean squared distance of two examples, which gets no gradient.
    """
    both = torch.cat([x, y]).flatten(1)
    # From differences: |a|² + |b|² - 2ab would cancel small distances in float32.
    square = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()
    pairs = len(both) * (len(both) - 1)
    b = square.detach().sum() / pairs + LEAST_BANDWIDTH
    k = torch.stack([(-square / (b * m)).exp() for m in BANDWIDTHS]).sum(0)
    n = len(x)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()
