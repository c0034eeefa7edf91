"""The fused losses, compiled and pure torch, against plainly written formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fededge import ops

pytestmark = pytest.mark.usefixtures("implementation")

many = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SEEDS = st.integers(0, 2**31 - 1)
# Around the widths of packs, and where one kind of lanes takes over from the other.
CLASSES = st.one_of(
    st.sampled_from([2, 3, 10, 15, 16, 17, 31, 32, 33, 62, 100]), st.integers(2, 70)
)
ROWS = st.one_of(st.sampled_from([1, 7, 8, 9, 15, 16, 17, 33]), st.integers(1, 40))
EXACT = {torch.float64: 1e-12, torch.float32: 2e-6}


def softmax(z: Tensor) -> Tensor:
    e = (z - z.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def log_sum(z: Tensor) -> Tensor:
    top = z.detach().amax(1)
    return top + (z - top[:, None]).exp().sum(1).log()


def own(z: Tensor, y: Tensor) -> Tensor:
    return torch.stack([row[k] for row, k in zip(z, y, strict=True)])


def spread(z: Tensor, y: Tensor) -> Tensor:
    """L1 of each row by eq. 7 of FedACD, the wrong classes picked out one by one."""
    rows = []
    for row, k in zip(z, y, strict=True):
        others = torch.cat([row[:k], row[k + 1 :]])
        log_p = others - log_sum(row[None])
        log_r = others - log_sum(others[None])
        rows.append((log_p.exp() * (log_r + math.log(len(others)))).sum())
    return torch.stack(rows)


def plain(z: Tensor, labels: list[Tensor], shares: list[float], **k: Any) -> Tensor:
    """The docstring of `label_loss`, word by word."""
    total = torch.zeros((), dtype=torch.float64)
    for y, share in zip(labels, shares, strict=True):
        u = k.get("scale", 1.0) * z + k.get("added_scale", 1.0) * k.get("added", 0.0)
        shift = k.get("shift", torch.zeros(z.shape[1], dtype=torch.float64))
        u = u + (shift if shift.dim() == 1 else torch.stack([shift[i] for i in y]))
        rows = k.get("weight", 1.0) * (log_sum(u) - own(u, y))
        if "target" in k:
            log_q = u - log_sum(u)[:, None]
            rows = rows - k["soft"] * torch.where(k["target"] > 0, k["target"] * log_q, 0.0).sum(1)
        if k.get("flat"):
            rows = rows + k["flat"] * spread(z, y)
        total = total + share * rows.mean()
    return total


def draw(seed: int, *shape: int, size: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(*shape, generator=generator, dtype=torch.float64)


def labels(seed: int, rows: int, classes: int) -> Tensor:
    return torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(seed))


def table(seed: int, classes: int) -> Tensor:
    """A table of log-ratios as FedACD has it: antisymmetric, with columns of log 1e-4 and -inf."""
    A = draw(seed, classes, classes)
    A = A - A.T
    A[:, labels(seed, 1, classes)] = math.log(1e-4)
    if classes > 2:
        A[:, labels(seed + 1, 1, classes)] = -math.inf
    return A.fill_diagonal_(0.0)


def agree(
    dtype: torch.dtype,
    ours: Callable[..., Tensor],
    expected: Callable[..., Tensor],
    *leaves: Tensor,
) -> None:
    """Loss and gradients, to the type's precision; gradients relative to their size."""
    mine = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    exact = [leaf.detach().double().requires_grad_() for leaf in mine]
    loss, value = ours(*mine), expected(*exact)
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(value.item(), rel=EXACT[dtype], abs=EXACT[dtype])
    slopes = torch.autograd.grad(loss, mine, materialize_grads=True)
    references = torch.autograd.grad(value, exact, materialize_grads=True)
    for slope, reference in zip(slopes, references, strict=True):
        assert slope.dtype == dtype
        least = len(leaves[0]) ** -0.5  # the size of 1/rows in each row, where they cancel out
        error = (slope.double() - reference).norm() / reference.norm().clamp(min=least)
        assert error <= EXACT[dtype]


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@many
@given(ROWS, CLASSES, SEEDS, st.sampled_from([0.1, 3.0, 40.0]), st.booleans(), st.booleans())
def test_fedacds_loss_is_its_formula(
    dtype: torch.dtype, rows: int, classes: int, seed: int, size: float, mixed: bool, factor: bool
) -> None:
    """L1 + 1.5 L2, of one labelling or a mixture of two, with logits up to 80."""
    z = draw(seed, rows, classes, size=size).clamp(-80, 80)
    A = table(seed, classes).to(dtype)
    ys = [labels(seed + i, rows, classes) for i in range(2 if mixed else 1)]
    shares = [0.3, 0.7] if mixed else [1.0]
    k: dict[str, Any] = {"weight": 1.5, "flat": 1.0}

    def ours(z: Tensor) -> Tensor:
        return ops.label_loss(z, ys, shares, shift=A, factor=A.exp() if factor else None, **k)

    agree(dtype, ours, lambda z: plain(z, ys, shares, shift=A.double(), **k), z)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@many
@given(ROWS, CLASSES, SEEDS, st.tuples(*[st.booleans()] * 7), st.sampled_from(["", "row", "table"]))
def test_any_set_of_adjustments_is_the_formula(
    dtype: torch.dtype, rows: int, classes: int, seed: int, there: tuple[bool, ...], shift: str
) -> None:
    """Scale, added logits with a gradient of their own, shifts, targets, flattening, mixtures."""
    z, added = draw(seed, rows, classes), draw(seed + 1, rows, classes)
    k: dict[str, Any] = {"weight": 0.0 if there[0] else 0.7}
    if there[1]:
        k["scale"] = draw(seed + 2, classes).abs().to(dtype)
    if there[2]:
        k.update(soft=0.4, target=2 * softmax(draw(seed + 3, rows, classes)).to(dtype))
    if there[3]:
        k["flat"] = 0.6
    if shift:
        k["shift"] = draw(seed + 4, classes) if shift == "row" else table(seed, classes)
        k["shift"] = k["shift"].nan_to_num(neginf=-30.0).to(dtype)
    ys = [labels(seed + i, rows, classes) for i in range(2 if there[4] else 1)]
    shares = [0.25, 0.75][: len(ys)]
    wide = {name: v.double() if isinstance(v, Tensor) else v for name, v in k.items()}
    if there[5]:
        if there[6]:
            k["added_scale"] = draw(seed + 5, classes).to(dtype)
            wide["added_scale"] = k["added_scale"].double()
        agree(
            dtype,
            lambda z, a: ops.label_loss(z, ys, shares, added=a, **k),
            lambda z, a: plain(z, ys, shares, added=a, **wide),
            z,
            added,
        )
    else:
        agree(
            dtype,
            lambda z: ops.label_loss(z, ys, shares, **k),
            lambda z: plain(z, ys, shares, **wide),
            z,
        )


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@many
@given(ROWS, CLASSES, SEEDS, st.sampled_from([0.5, 1.0, 4.0]), st.booleans())
def test_distillation_is_its_formula(
    dtype: torch.dtype, rows: int, classes: int, seed: int, T: float, masked: bool
) -> None:
    z, teacher = draw(seed, rows, classes), draw(seed + 1, rows, classes).to(dtype)
    y = labels(seed, rows, classes)

    def without(x: Tensor) -> Tensor:
        left = [torch.cat([row[:k], row[k + 1 :]]) for row, k in zip(x, y, strict=True)]
        return torch.stack(left) if masked else x

    def expected(z: Tensor) -> Tensor:
        p, q = softmax(without(teacher.double()) / T), softmax(without(z) / T)
        return T**2 * (p * (p.log() - q.log())).sum(1).mean()

    agree(dtype, lambda z: ops.distillation(z, teacher, T, y if masked else None), expected, z)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@many
@given(ROWS, CLASSES, SEEDS)
def test_soft_cross_entropy_is_its_formula(
    dtype: torch.dtype, rows: int, classes: int, seed: int
) -> None:
    target = softmax(draw(seed + 1, rows, classes)).to(dtype)
    agree(
        dtype,
        lambda z: ops.soft_cross_entropy(z, target),
        lambda z: -(target.double() * softmax(z).log()).sum(1).mean(),
        draw(seed, rows, classes),
    )


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@many
@given(ROWS, CLASSES, SEEDS)
def test_probability_sums_go_on_from_what_is_there(
    dtype: torch.dtype, rows: int, classes: int, seed: int
) -> None:
    z = draw(seed, rows, classes, size=10.0).to(dtype)
    ys = [labels(seed + i, rows, classes) for i in range(2)]
    num, den = torch.ones(classes, classes, dtype=torch.float64), torch.ones(classes).double()
    expected, counts = num.clone(), den.clone()
    for y, share in zip(ys, (0.3, 0.7), strict=True):
        for row, k in zip(softmax(z.double()), y, strict=True):
            expected[k] += share * row
            counts[k] += share
    ops.probability_sums_(num, den, z, ys, (0.3, 0.7))
    torch.testing.assert_close(num, expected, rtol=EXACT[dtype], atol=EXACT[dtype])
    torch.testing.assert_close(den, counts, rtol=1e-12, atol=1e-12)


def test_a_single_number_has_no_choice() -> None:
    z = torch.zeros(1, 1, requires_grad=True)
    loss = ops.label_loss(z, (torch.zeros(1).long(),))
    loss.backward()
    assert z.grad is not None
    assert (loss.item(), z.grad.item()) == (0.0, 0.0)


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda z: z.T.contiguous().T,
    "columns of more": lambda z: torch.cat([z, z], 1)[:, : z.shape[1]],
    "every other column": lambda z: z.repeat_interleave(2, 1)[:, ::2],
    "every other row": lambda z: z.repeat_interleave(2, 0)[::2],
}


@pytest.mark.parametrize("classes", [5, 40])
@pytest.mark.parametrize("kind", STRIDED)
def test_strides_do_not_matter(kind: str, classes: int) -> None:
    z, A = draw(1, 20, classes), table(1, classes)
    y = labels(1, 20, classes)
    target = softmax(draw(2, 20, classes))
    strided = STRIDED[kind]
    results = []
    for turn in (lambda x: x, strided):
        leaf = z.clone().requires_grad_()
        narrow = torch.stack([y, y], 1)[:, 0] if turn is strided else y
        loss = ops.label_loss(turn(leaf), (narrow,), shift=turn(A), factor=turn(A.exp()), flat=1.0)
        loss = loss + ops.label_loss(turn(leaf), (y.int(),), soft=1.0, target=turn(target))
        loss = loss + ops.distillation(turn(leaf), turn(target), 2.0, narrow)
        results.append((loss.detach(), torch.autograd.grad(loss, leaf)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [10, 64])
def test_half_precision_is_computed_in_single(dtype: torch.dtype, classes: int) -> None:
    """The result is that of the same logits in float32, rounded once."""
    z, y = draw(1, 200, classes).to(dtype), labels(1, 200, classes)
    A = table(1, classes).float()
    results = []
    for leaf in (z.clone().requires_grad_(), z.float().requires_grad_()):
        loss = 1000 * ops.label_loss(leaf, (y,), shift=A, factor=A.exp(), flat=1.0)
        results.append((loss.detach(), torch.autograd.grad(loss, leaf)[0]))
    (loss, slope), (single, reference) = results
    assert (loss.dtype, slope.dtype) == (dtype, dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(loss.float(), single, rtol=4 * eps, atol=0)
    torch.testing.assert_close(slope.float(), reference, rtol=4 * eps, atol=4 * eps)


def test_no_rows_have_no_mean_and_no_gradient() -> None:
    z = torch.zeros(0, 4, requires_grad=True)
    y = torch.zeros(0, dtype=torch.int64)
    losses = [
        ops.label_loss(z, (y,), flat=1.0),
        ops.distillation(z, z.detach()),
        ops.soft_cross_entropy(z, z.detach()),
    ]
    for loss in losses:
        assert loss.isnan()
        assert torch.autograd.grad(loss, z)[0].shape == (0, 4)
    num, den = torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    ops.probability_sums_(num, den, z.detach(), (y,))
    assert num.sum() == den.sum() == 0


@pytest.mark.parametrize("classes", [4, 50])
def test_nan_stays_in_its_row(classes: int) -> None:
    """A NaN spoils the loss and its own row's gradient, and nothing else."""
    z, y = draw(1, 40, classes).float(), labels(1, 40, classes)
    z[7, 2] = math.nan
    z.requires_grad_()
    A = table(1, classes).float()
    loss = ops.label_loss(z, (y,), shift=A, factor=A.exp(), flat=1.0)
    (slope,) = torch.autograd.grad(loss, z)
    assert loss.isnan()
    assert slope[7].isnan().all()
    assert slope[:7].isfinite().all()
    assert slope[8:].isfinite().all()


BAD: dict[str, Callable[[Tensor, Tensor], object]] = {
    "label_loss": lambda z, y: ops.label_loss(z, (y,)),
    "distillation": lambda z, y: ops.distillation(z, z, 1.0, y),
    "probability_sums_": lambda z, y: ops.probability_sums_(
        torch.zeros(3, 3).double(), torch.zeros(3).double(), z, (y,)
    ),
}


@pytest.mark.parametrize("op", BAD)
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_outside_of_the_classes_is_named(op: str, label: int) -> None:
    y = torch.tensor([0, label, 1])
    with pytest.raises(IndexError, match=f"^{op}: label {label} of row 1 is not one of 3 classes"):
        BAD[op](torch.zeros(3, 3), y)


@pytest.mark.parametrize("op", BAD)
def test_labels_of_another_length_are_refused(op: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^{op}: the labels have shape \[2\] but there are 3 row"
    ):
        BAD[op](torch.zeros(3, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize("mixed", [False, True])
def test_gradcheck(mixed: bool) -> None:
    """By finite differences, with every input that can have a gradient."""
    z, added = draw(1, 6, 5).requires_grad_(), draw(2, 6, 5).requires_grad_()
    ys = [labels(1, 6, 5), labels(2, 6, 5)][: 2 if mixed else 1]
    shares = [0.3, 0.7][: len(ys)]
    A, scale = draw(3, 5, 5), draw(4, 5).abs()
    target = softmax(draw(5, 6, 5))
    checks: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (lambda z: ops.label_loss(z, ys, shares, shift=A, factor=A.exp(), flat=1.0), (z,)),
        (lambda z, a: ops.label_loss(z, ys, shares, shift=A, scale=scale, added=a), (z, added)),
        (lambda z, a: ops.label_loss(z, ys, shares, added=a, flat=0.5), (z, added)),
        (lambda z, a: ops.label_loss(z, ys, shares, added=a, added_scale=A[0]), (z, added)),
        (lambda z: ops.label_loss(z, ys, shares, soft=0.5, target=target), (z,)),
        (lambda z: ops.distillation(z, target, 3.0, ys[0]), (z,)),
    ]
    for function, inputs in checks:
        assert torch.autograd.gradcheck(function, inputs)
