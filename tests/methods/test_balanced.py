"""Balanced softmax against its formula in double precision, and against plain cross entropy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fededge.errors import MethodError
from fededge.method.base import Batch, Output
from fededge.methods import method
from fededge.methods.balanced import Balanced
from tests.label_losses import check_loss, drawn

CASES: dict[str, tuple[list[int], float, int]] = {
    "random": ([50, 3, 20, 7, 1], 3.0, 16),
    "extreme logits": ([50, 3, 20, 7, 1], 80.0, 16),
    "missing classes": ([50, 0, 20, 0, 1], 5.0, 16),
    "one class": ([0, 0, 40, 0, 0], 5.0, 16),
    "single sample": ([50, 3, 20, 7, 1], 3.0, 1),
}


def formula(z: Tensor, y: Tensor, n: Tensor, gamma: float) -> Tensor:
    """The mean of -log(n_y^γ e^{z_y} / Σ n_c^γ e^{z_c}); a missing class counts 1e-12."""
    n = torch.where(n > 0, n.double(), 1e-12)
    rows = []
    for row, label in zip(z, y, strict=True):
        top = row.detach().max()
        weighted = n**gamma * (row - top).exp()
        rows.append(weighted.sum().log() - (row[label] - top) - gamma * n[label].log())
    return torch.stack(rows).mean()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_the_formulas(case: str, gamma: float) -> None:
    numbers, size, batch = CASES[case]
    counts = torch.tensor(numbers)
    z, y = drawn(counts, size, batch, seed=3)
    z.requires_grad_()
    check_loss(Balanced(gamma=gamma), counts, z, y, formula(z, y, counts, gamma))


def test_a_missing_class_is_left_alone() -> None:
    """Plain cross entropy would push its logit down at every step."""
    counts = torch.tensor([10, 0])
    z = torch.zeros(1, 2, requires_grad=True)
    r: Any = SimpleNamespace(counts=counts)
    y = torch.tensor([0])
    out = Output(z, z)
    Balanced().objective(r, out, Batch(z, ((y, 1.0),))).loss(out, y).backward()
    assert z.grad is not None
    assert z.grad.abs().max() < 1e-12


def test_a_negative_exponent_is_refused() -> None:
    with pytest.raises(MethodError, match=r"^balanced\(gamma=-1.0\): gamma must be at least 0$"):
        method("balanced(gamma=-1)")
