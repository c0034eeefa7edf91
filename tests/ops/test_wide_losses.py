"""The losses and sums of thousands of rows or classes, against their formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fededge import ops
from tests.ops.test_losses import EXACT, SEEDS, agree, draw, labels, log_sum, many, softmax

pytestmark = pytest.mark.usefixtures("implementation")

# As many of either as there may be; both at once would only be slow.
SHAPES = st.tuples(st.integers(0, 5000), st.integers(2, 5000)).map(
    lambda shape: (min(shape[0], 60_000 // shape[1]), shape[1])
) | st.tuples(st.integers(0, 5000), st.integers(2, 12))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@many
@given(SHAPES, SEEDS, st.sampled_from([0.1, 3.0, 1e4]), st.booleans())
@example((5000, 2), 1, 3.0, False)
@example((3, 5000), 1, 3.0, True)
@example((0, 5000), 1, 3.0, False)
def test_long_and_wide_inputs(
    dtype: torch.dtype, shape: tuple[int, int], seed: int, size: float, ruled_out: bool
) -> None:
    """Several threads' shares, rows of many packs, logits up to 40000, classes that -inf rules out.

    The slope of cross entropy is softmax less the label's one, written out in float64.
    """
    z, y = draw(seed, *shape, size=size).to(dtype), labels(seed, *shape)
    row = torch.zeros(shape[1], dtype=dtype)
    if ruled_out:
        row[0] = -math.inf
        y = y.clamp(min=1)
    hot = torch.zeros(shape, dtype=torch.float64)
    hot[torch.arange(shape[0]), y] = 1.0
    u = z.double() + row
    z.requires_grad_()
    loss = ops.label_loss(z, (y,), shift=row)
    loss.backward()
    assert z.grad is not None
    assert z.grad.shape == shape
    if not shape[0]:
        assert loss.isnan()
        return
    expected = (log_sum(u) - u.gather(1, y[:, None])[:, 0]).mean()
    exact = EXACT[dtype]
    assert loss.item() == pytest.approx(expected.item(), rel=exact, abs=exact)
    slope = (softmax(u) - hot) / shape[0]
    error = (z.grad.double() - slope).norm() / slope.norm().clamp(min=1 / shape[0])
    assert error <= exact


few = settings(many, max_examples=6)
Loss = Callable[[Tensor], Tensor]


def cross_entropy(u: Tensor, y: Tensor) -> Tensor:
    return (log_sum(u) - u.gather(1, y[:, None])[:, 0]).mean()


def soft_entropy(u: Tensor, target: Tensor) -> Tensor:
    return -(target * (u - log_sum(u)[:, None])).sum(1).mean()


def but(z: Tensor, y: Tensor) -> Tensor:
    """The classes that are not the label's."""
    rest = torch.ones(z.shape, dtype=torch.bool)
    rest[torch.arange(len(z)), y] = False
    return z[rest].view(len(z), -1)


def flattened(z: Tensor, y: Tensor) -> Tensor:
    others = but(z, y)
    log_p, log_r = others - log_sum(z)[:, None], others - log_sum(others)[:, None]
    return (log_p.exp() * (log_r + math.log(z.shape[1] - 1))).sum(1).mean()


def divergence(z: Tensor, teacher: Tensor, T: float) -> Tensor:
    log_p, log_q = (x / T - log_sum(x / T)[:, None] for x in (teacher, z))
    return T**2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()


class Wide:
    """Arguments of the losses with thousands of classes; the rows of a table overlap."""

    def __init__(self, seed: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
        rows, classes = shape
        self.y, self.other = labels(seed, *shape), labels(seed + 1, *shape)
        self.scale = draw(seed + 2, classes).abs().to(dtype)
        long = draw(seed + 3, 2 * classes - 1).to(dtype)
        self.A, self.Delta = long.unfold(0, classes, 1), long.exp().unfold(0, classes, 1)
        self.teacher = draw(seed + 4, rows, classes).to(dtype)
        self.target = softmax(draw(seed + 5, rows, classes)).to(dtype)

    def fedacd(self, z: Tensor, y: Tensor) -> Tensor:
        return flattened(z, y) + cross_entropy(z + self.A[y].double(), y)


def wide_losses(w: Wide) -> dict[str, tuple[Loss, Loss]]:
    """Each as the op, and as its formula in float64."""
    y, both, shares = w.y, (w.y, w.other), (0.3, 0.7)
    k: dict[str, Any] = {"shift": w.A, "factor": w.Delta, "flat": 1.0}
    scale, teacher, target = w.scale.double(), w.teacher.double(), w.target.double()

    def lfd(z: Tensor) -> Tensor:
        u = z + w.A[y].double()
        return cross_entropy(u, y) + 0.5 * soft_entropy(u, target)

    def mixed(z: Tensor) -> Tensor:
        return 0.3 * w.fedacd(z, y) + 0.7 * w.fedacd(z, w.other)

    return {
        "fedacd": (lambda z: ops.label_loss(z, (y,), **k), lambda z: w.fedacd(z, y)),
        "fedacd+mixup": (lambda z: ops.label_loss(z, both, shares, **k), mixed),
        "adjusted by label": (
            lambda z: ops.label_loss(z, (y,), shift=w.A),
            lambda z: cross_entropy(z + w.A[y].double(), y),
        ),
        "restricted": (
            lambda z: ops.label_loss(z, (y,), scale=w.scale),
            lambda z: cross_entropy(scale * z, y),
        ),
        "fused logits": (
            lambda z: ops.label_loss(z, (y,), added=w.teacher, added_scale=w.scale),
            lambda z: cross_entropy(z + scale * teacher, y),
        ),
        "lfd": (lambda z: ops.label_loss(z, (y,), shift=w.A, soft=0.5, target=w.target), lfd),
        "soft": (
            lambda z: ops.soft_cross_entropy(z, w.target),
            lambda z: soft_entropy(z, target),
        ),
        "distillation": (
            lambda z: ops.distillation(z, w.teacher, 4.0),
            lambda z: divergence(z, teacher, 4.0),
        ),
        "not true": (
            lambda z: ops.distillation(z, w.teacher, 2.0, y),
            lambda z: divergence(but(z, y), but(teacher, y), 2.0),
        ),
    }


LOSSES = list(wide_losses(Wide(0, (1, 3), torch.float64)))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("name", LOSSES)
@few
@given(SHAPES, SEEDS)
@example((5000, 12), 1)
@example((12, 5000), 1)
@example((0, 5000), 1)
def test_every_loss_of_long_and_wide_inputs(
    name: str, dtype: torch.dtype, shape: tuple[int, int], seed: int
) -> None:
    ours, expected = wide_losses(Wide(seed, shape, dtype))[name]
    z = draw(seed, *shape)
    if shape[0]:
        agree(dtype, ours, expected, z)
        return
    z = z.to(dtype).requires_grad_()
    loss = ours(z)
    assert loss.isnan()
    assert torch.autograd.grad(loss, z)[0].shape == shape


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@few
@given(SHAPES, SEEDS)
@example((5000, 12), 1)
@example((12, 5000), 1)
@example((0, 5000), 1)
def test_probability_sums_of_long_and_wide_inputs(
    dtype: torch.dtype, shape: tuple[int, int], seed: int
) -> None:
    """Compare only the labels' rows of a large table; its sum shows that no other row changed."""
    z, classes = draw(seed, *shape, size=10.0).to(dtype), shape[1]
    ys, shares = [labels(seed + i, *shape) for i in range(2)], (0.3, 0.7)
    num = torch.zeros(classes, classes, dtype=torch.float64)
    den = torch.zeros(classes, dtype=torch.float64)
    ops.probability_sums_(num, den, z, ys, shares)
    met, place = torch.cat(ys).unique(return_inverse=True)
    weight = torch.tensor(shares, dtype=torch.float64).repeat_interleave(shape[0])
    p = softmax(z.double()).repeat(2, 1) * weight[:, None]
    expected = torch.zeros(len(met), classes, dtype=torch.float64).index_add_(0, place, p)
    torch.testing.assert_close(num[met], expected, rtol=EXACT[dtype], atol=EXACT[dtype])
    assert den[met].sum().item() == pytest.approx(shape[0], rel=1e-12)
    assert num.sum().item() == pytest.approx(shape[0], rel=EXACT[dtype])
    assert den.count_nonzero() == len(met)
