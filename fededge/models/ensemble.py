"""Two networks that answer together: what FedBalance deploys."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Fused"]


class Fused(nn.Module):
    """φ(x) + ψ(x), where ψ's head has α in it."""

    def __init__(self, generic: nn.Module, weak: nn.Module) -> None:
        super().__init__()
        self.generic = generic
        self.weak = weak

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.generic(x) + self.weak(x)
        return logits
