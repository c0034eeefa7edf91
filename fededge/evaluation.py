"""How good a model is: accuracy in all, and class by class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["accuracy", "predictions"]


@torch.no_grad()
def predictions(module: nn.Module, preprocess: nn.Module, x: Tensor, batch: int = 256) -> Tensor:
    """The label that the module gives each input, in evaluation mode; its mode is put back."""
    training = module.training
    module.eval()
    try:
        parts = [module(preprocess(part)).argmax(1) for part in x.split(batch)]
    finally:
        module.train(training)
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def accuracy(module: nn.Module, preprocess: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of inputs that get their label; NaN where there are none."""
    if not len(y):
        return float("nan")
    return float((predictions(module, preprocess, x) == y).double().mean())
