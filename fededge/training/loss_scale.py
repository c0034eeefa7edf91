"""Loss scaling for float16: small gradients would vanish, so the loss is multiplied first.

A phase begins with a search: its first gradient is made again with half the scale until it is
finite, so that a device with few batches loses no step. All later decisions stay on the device: a
step whose gradient overflowed is taken back, and the scale is halved; after many good steps in a
row it is doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

from fededge._internal.lazy_torch import Tensor, torch

__all__ = ["LossScale"]

FIRST_SCALE = 2.0**15
LEAST_SCALE = 2.0**-14
GROWTH_INTERVAL = 2000
"""Good steps in a row after which the scale is doubled."""


class LossScale:
    """The scale of one phase's losses, the record of its last gradient, and its steps `taken`."""

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), FIRST_SCALE, device=device)
        self.good_steps = torch.zeros((), device=device)
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self.taken = torch.zeros((), device=device)
        self.found = False

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def unscale_(self, gradients: Sequence[Tensor]) -> None:
        """Divide gradients by the scale, or make all of them zero if one overflowed; adapt it."""
        self.finite = torch.stack([torch.isfinite(g).all() for g in gradients]).all()
        for gradient in gradients:
            gradient.copy_(torch.where(self.finite, gradient / self.scale, 0.0))
        self.taken += self.finite
        self.good_steps = torch.where(self.finite, self.good_steps + 1, 0.0)
        grown = torch.where(self.good_steps >= GROWTH_INTERVAL, 2.0, 1.0)
        self.good_steps = torch.where(self.good_steps >= GROWTH_INTERVAL, 0.0, self.good_steps)
        self.scale = (self.scale * torch.where(self.finite, grown, 0.5)).clamp(min=LEAST_SCALE)

    def find(self) -> bool:
        """Return False if the gradient must be made again; reads the device until it is True."""
        self.found = self.found or bool(self.finite | (self.scale <= LEAST_SCALE))
        return self.found

    def keep_(self, now: Tensor, before: Tensor) -> None:
        """Take a step back if its gradient had overflowed."""
        torch.where(self.finite, now, before, out=now)
