"""Losses for skewed labels against their formulas: random logits and labels, and the comparison."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fededge.method.base import Batch, Method, Output

__all__ = ["check_loss", "drawn"]


def drawn(counts: Tensor, size: float, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits up to `size`, and labels that the device has."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(batch, len(counts), dtype=torch.float64, generator=draw)
    z = z / z.abs().max() * size
    return z, torch.multinomial(counts.double(), batch, replacement=True, generator=draw)


def check_loss(method: Method, counts: Tensor, z: Tensor, y: Tensor, expected: Tensor) -> Tensor:
    """Compare a method's loss and gradient with a formula's in float64; return that gradient.

    Args:
        method: its objective depends on the label counts only.
        counts: the device's examples of each class.
        z: logits, float64, which `expected` was computed from.
        y: their labels.
        expected: the formula's loss.
    """
    (gradient,) = torch.autograd.grad(expected, z)
    r: Any = SimpleNamespace(counts=counts)
    for dtype, exact in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        own = z.detach().to(dtype).requires_grad_()
        out = Output(own, own)
        loss = method.objective(r, out, Batch(own, ((y, 1.0),))).loss(out, y)
        (g,) = torch.autograd.grad(loss, own)
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=exact, rel=exact)
        assert torch.allclose(g.double(), gradient, atol=exact)
    return gradient
