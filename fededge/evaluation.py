"""How good a model is, measured in evaluation mode and without a trace on the module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["accuracy", "class_accuracies", "evaluating", "predictions"]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients; afterwards every submodule is in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def predictions(module: nn.Module, preprocess: nn.Module, x: Tensor, batch: int = 256) -> Tensor:
    """The label that the module gives each input."""
    with evaluating(module):
        return torch.cat([module(preprocess(part)).argmax(1) for part in x.split(batch)])


def accuracy(module: nn.Module, preprocess: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of inputs that get their label; NaN where there are none."""
    if not len(y):
        return float("nan")
    return float((predictions(module, preprocess, x) == y).double().mean())


def class_accuracies(
    module: nn.Module, preprocess: nn.Module, x: Tensor, y: Tensor, classes: int
) -> Tensor:
    """The share of each class's inputs that get their label (float64 [classes]); NaN where none."""
    right = (predictions(module, preprocess, x) == y).double()
    hits = torch.zeros(classes, dtype=torch.float64).index_add_(0, y, right)
    return hits / torch.bincount(y, minlength=classes)
