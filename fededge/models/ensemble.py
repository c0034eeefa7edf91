"""FedBalance's personal model: two networks whose logits add up."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["LogitSum"]


class LogitSum(nn.Module):
    """φ(x) + ψ(x); ψ's head already includes α."""

    def __init__(self, generic: nn.Module, weak: nn.Module) -> None:
        super().__init__()
        self.generic = generic
        self.weak = weak

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.generic(x) + self.weak(x)
        return logits
