"""Logits and labels as a device with skewed labels meets them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["drawn"]


def drawn(counts: Tensor, size: float, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits up to `size`, and labels that the device has."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(batch, len(counts), dtype=torch.float64, generator=draw)
    z = z / z.abs().max() * size
    return z, torch.multinomial(counts.double(), batch, replacement=True, generator=draw)
