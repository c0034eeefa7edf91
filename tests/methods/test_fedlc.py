"""FedLC against its formula in double precision, and against plain cross entropy."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fededge.errors import MethodError
from fededge.method.base import Batch, Output
from fededge.methods import method
from fededge.methods.fedlc import FedLC
from tests.label_losses import check_loss, drawn

CASES: dict[str, tuple[list[int], float, int]] = {
    "random": ([81, 16, 256, 1, 7], 3.0, 16),
    "extreme logits": ([81, 16, 256, 1, 7], 80.0, 16),
    "missing classes": ([81, 0, 256, 0, 7], 5.0, 16),
    "one class": ([0, 0, 40, 0, 0], 5.0, 16),
    "single sample": ([81, 16, 256, 1, 7], 3.0, 1),
}


def formula(z: Tensor, y: Tensor, n: Tensor, tau: float) -> Tensor:
    """Over the classes that are there: -log(e^{z_y - τ n_y^(-1/4)} / Σ e^{z_c - τ n_c^(-1/4)})."""
    here = n > 0
    rows = []
    for row, label in zip(z, y, strict=True):
        calibrated = row - tau * n.double().pow(-0.25)
        kept = calibrated[here]
        top = kept.detach().max()
        rows.append((kept - top).exp().sum().log() + top - calibrated[label])
    return torch.stack(rows).mean()


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_the_formulas(case: str, tau: float) -> None:
    """Leaving missing classes out, as -inf would, makes no difference."""
    numbers, size, batch = CASES[case]
    counts = torch.tensor(numbers)
    z, y = drawn(counts, size, batch, seed=5)
    z.requires_grad_()
    gradient = check_loss(FedLC(tau=tau), counts, z, y, formula(z, y, counts, tau))
    p = (z.detach() - tau * counts.double().pow(-0.25)).softmax(1)
    closed = (p - torch.nn.functional.one_hot(y, len(counts))) / batch
    assert torch.allclose(gradient, closed, atol=1e-12)


def test_a_rare_class_gets_the_larger_margin() -> None:
    """16 and 81 examples: margins 1/2 and 1/3. At z = 0 the losses are those of ∓1/6."""
    r: Any = SimpleNamespace(counts=torch.tensor([16, 81]))
    z = torch.zeros(1, 2)
    for label, sign in ((0, 1), (1, -1)):
        y = torch.tensor([label])
        objective = FedLC().objective(r, Output(z, z), Batch(z, ((y, 1.0),)))
        expected = math.log(1 + math.exp(sign / 6))
        assert float(objective.loss(Output(z, z), y)) == pytest.approx(expected, abs=1e-6)


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(MethodError, match=r"^fedlc\(tau=-1.0\): tau must be at least 0$"):
        method("fedlc(tau=-1)")
