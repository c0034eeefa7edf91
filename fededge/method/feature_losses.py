"""Losses on features; losses on logits are ops (`fededge.ops.losses`)."""

from __future__ import annotations

from fededge import models
from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import MethodError

__all__ = ["check_features", "mmd"]

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
LEAST_BANDWIDTH = 1e-8


def check_features(net: nn.Module, method: str) -> None:
    """Refuse a network without a head: its features are not known."""
    if not isinstance(net, models.Classifier):
        raise MethodError(
            f"{method} needs the network's features, the inputs of its last linear layer: no such "
            "layer is found; let the network return fededge.models.Classifier(body, head)"
        )


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
