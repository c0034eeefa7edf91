"""The shared losses and their gradients, against the papers' formulas in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fededge.method.feature_losses import mmd
from fededge.ops import distillation, soft_cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]

PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-5)]
KINDS = ["random", "extreme", "one class", "single", "the same"]


def pair(kind: str) -> tuple[Tensor, Tensor]:
    """Two batches of numbers, as logits or as features."""
    draw = torch.Generator().manual_seed(2)
    a, b = torch.randn(2, 6, 4, generator=draw, dtype=torch.float64)
    if kind == "extreme":
        a, b = 80 * a.sign(), 80 * b.sign()
    if kind == "one class":  # every example alike, one logit far above the others
        a, b = (torch.tensor([[30.0, 0.0, 0.0, -30.0]]).double().repeat(6, 1) + x for x in (a, b))
    if kind == "single":
        a, b = a[:1], b[:1]
    return (a, a.clone()) if kind == "the same" else (a, b)


def compare(ours: Loss, plain: Loss, kind: str, dtype: torch.dtype, tolerance: float) -> Tensor:
    """Hold loss and gradient against the plain version; returns the plain gradient."""
    a, b = pair(kind)
    x = a.to(dtype).requires_grad_()
    loss = ours(x, b.to(dtype))
    (gradient,) = torch.autograd.grad(loss, x)
    z = a.clone().requires_grad_()
    expected = plain(z, b)
    (by_autograd,) = torch.autograd.grad(expected, z)
    assert loss.dtype == gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance, abs=tolerance)
    assert torch.allclose(gradient.double(), by_autograd, atol=tolerance, rtol=tolerance)
    return by_autograd


def softmax(z: Tensor) -> Tensor:
    e = (z - z.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def log_softmax(z: Tensor) -> Tensor:
    z = z - z.amax(1, keepdim=True)
    return z - z.exp().sum(1, keepdim=True).log()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 4.0, 0.5])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_distillation(kind: str, temperature: float, dtype: torch.dtype, tolerance: float) -> None:
    """T² Σ q log(q/p) with q = softmax(teacher/T), p = softmax(z/T); dz = T (p - q) / B."""

    def plain(z: Tensor, teacher: Tensor) -> Tensor:
        log_p, log_q = log_softmax(z / temperature), log_softmax(teacher / temperature)
        return temperature**2 * (log_q.exp() * (log_q - log_p)).sum(1).mean()

    def ours(z: Tensor, teacher: Tensor) -> Tensor:
        return distillation(z, teacher, temperature)

    gradient = compare(ours, plain, kind, dtype, tolerance)
    a, b = pair(kind)
    by_hand = temperature * (softmax(a / temperature) - softmax(b / temperature)) / len(a)
    assert torch.allclose(gradient, by_hand, atol=1e-10)


def test_distillation_by_hand() -> None:
    """Teacher (log 3, 0), student (0, 0), T = 1: 3/4 log(3/2) + 1/4 log(1/2) = 0.130812."""
    loss = distillation(torch.zeros(1, 2), torch.tensor([[math.log(3.0), 0.0]]), 1.0)
    assert loss.item() == pytest.approx(0.130812, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_cross_entropy_with_a_soft_target(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    """-Σ t log p; dz = (p - t) / B."""

    def plain(z: Tensor, b: Tensor) -> Tensor:
        return -(softmax(b) * log_softmax(z)).sum(1).mean()

    def ours(z: Tensor, b: Tensor) -> Tensor:
        return soft_cross_entropy(z, b.softmax(1))

    gradient = compare(ours, plain, kind, dtype, tolerance)
    a, b = pair(kind)
    assert torch.allclose(gradient, (softmax(a) - softmax(b)) / len(a), atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_mmd(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    """Pair by pair: kernels of width 1/4, 1/2, 1, 2, 4 times the mean squared distance."""

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).square().sum()

    def plain(x: Tensor, y: Tensor) -> Tensor:
        every = [*x, *y]
        apart = [
            distance(a, b).detach() for i, a in enumerate(every) for b in every[:i]
        ]  # every two examples once
        width = torch.stack(apart).mean() + 1e-8

        def kernel(a: Tensor, b: Tensor) -> Tensor:
            return torch.stack(
                [(-distance(a, b) / (width * m)).exp() for m in (0.25, 0.5, 1, 2, 4)]
            ).sum()

        def mean(first: Tensor, second: Tensor) -> Tensor:
            return torch.stack([kernel(a, b) for a in first for b in second]).mean()

        return mean(x, x) + mean(y, y) - 2 * mean(x, y)

    compare(mmd, plain, kind, dtype, tolerance)


def test_mmd_by_hand() -> None:
    """One example each, 3 apart: the mean squared distance is 9, whatever it is.

    k(x, x) = k(y, y) = 5 and k(x, y) = e^-4 + e^-2 + e^-1 + e^-1/2 + e^-1/4 = 1.906862.
    """
    for apart in (3.0, 300.0):
        x, y = torch.zeros(1, 2, 1), torch.tensor([[[apart], [0.0]]])
        assert mmd(x, y).item() == pytest.approx(2 * 5 - 2 * 1.906862, abs=1e-5)


def test_mmd_of_equal_samples_is_zero_and_has_no_gradient() -> None:
    """Also where all examples are one point, and the bandwidth would be 0."""
    x = torch.ones(4, 3, requires_grad=True)
    loss = mmd(x, torch.ones(4, 3))
    (gradient,) = torch.autograd.grad(loss, x)
    assert loss.item() == 0
    assert torch.equal(gradient, torch.zeros(4, 3))


def test_mmd_sees_small_distances_far_from_the_origin() -> None:
    """Features near 1000 whose differences are near 1, in single precision."""
    x, y = pair("random")
    near, far = mmd(x, y), mmd((x + 1000).float(), (y + 1000).float())
    assert far.item() == pytest.approx(near.item(), abs=1e-3)
