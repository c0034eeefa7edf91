"""The other row kernels as a GPU runs them, played on the CPU, and how rows are shared out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from tests.ops.playing import Job, Played, Shape

WIDTHS = [(1, 1), (8, 8), (32, 32), (64, 64), (64, 16), (128, 32)]
COLUMNS = [2, 10, 33, 1500]
widths = pytest.mark.parametrize(("threads", "warp"), WIDTHS)


def nobody() -> Tensor:
    """The place for a label outside of the classes."""
    return torch.tensor([torch.iinfo(torch.int64).min])


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@widths
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("without", [False, True], ids=["all classes", "without the label's"])
def test_distillation(played: Played, threads: int, warp: int, columns: int, without: bool) -> None:
    z, teacher = (3 * normal(5, columns)).requires_grad_(), 3 * normal(5, columns).flip(1)
    y = torch.arange(5) * 7 % columns
    own = torch.nn.functional.one_hot(y, columns).bool() & torch.tensor(without)
    logs, aims = (
        log_softmax(x.masked_fill(own, -math.inf) / 2.0, 1).masked_fill(own, 0.0)
        for x in (z, teacher)
    )
    divergence = 4.0 * (aims.exp() * (aims - logs)).masked_fill(own, 0.0).sum(1)
    divergence.mean().backward()
    results, dz, outside = torch.full((5,), math.nan).double(), torch.empty_like(z), nobody()
    job = Job(5, columns, results.data_ptr(), outside.data_ptr())
    shape = Shape(threads, warp, 2, 1)
    code = played.distillation_double(
        z, columns, teacher, dz, y if without else None, 2.0, job, shape
    )
    assert code == 0
    torch.testing.assert_close(results, divergence.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(dz, z.grad, rtol=1e-9, atol=1e-9)


def sums(
    played: Played, z: Tensor, labels: list[Tensor], shape: Shape, outside: Tensor
) -> tuple[Tensor, Tensor]:
    rows, columns = z.shape
    num, den = torch.ones(columns, columns).double(), torch.ones(columns).double()
    job = Job(rows, columns, None, outside.data_ptr())
    other = labels[1] if len(labels) > 1 else None
    code = played.probability_sums_float(
        z, z.stride(0), num, den, labels[0], other, 0.3, 0.7, job, shape
    )
    assert code == 0
    return num, den


@widths
@pytest.mark.parametrize("columns", [2, 10, 33, 400])
@pytest.mark.parametrize("labellings", [1, 2])
def test_probability_sums(
    played: Played, threads: int, warp: int, columns: int, labellings: int
) -> None:
    """They are added to what is there; every class is one group's, and any number of groups do."""
    z = normal(9, columns).float()
    labels = [torch.arange(9) % columns, torch.full((9,), columns - 1)][:labellings]
    num, den = torch.ones(columns, columns).double(), torch.ones(columns).double()
    for y, share in zip(labels, (0.3, 0.7), strict=False):
        num.index_add_(0, y, share * z.double().softmax(1))
        den.index_add_(0, y, torch.full((9,), share, dtype=torch.float64))
    outside = nobody()
    for groups in (1, 3, columns + 1):
        found = sums(played, z, labels, Shape(threads, warp, groups, 1), outside)
        torch.testing.assert_close(found[0], num, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found[1], den, rtol=1e-14, atol=0)
    assert torch.equal(outside, nobody())


def test_probability_sums_do_not_depend_on_how_they_are_shared_out(played: Played) -> None:
    z, y = normal(40, 10).float(), [torch.arange(40) % 10, torch.arange(40) // 4]
    first = sums(played, z, y, Shape(32, 32, 1, 1), nobody())
    for groups, seed in ((2, 2), (5, 3), (64, 4)):
        again = sums(played, z, y, Shape(32, 32, groups, seed), nobody())
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("label", [-1, 10, 2**40])
def test_probability_sums_leave_out_a_label_outside_and_report_it(
    played: Played, label: int
) -> None:
    z, y, outside = normal(4, 10).float(), torch.tensor([0, label, 2, 9]), nobody()
    _, den = sums(played, z, [y], Shape(32, 32, 4, 1), outside)
    assert outside.item() == label
    expected = 1 + 0.3 * torch.tensor([1.0, 0, 1, 0, 0, 0, 0, 0, 0, 1]).double()
    torch.testing.assert_close(den, expected)


@pytest.mark.parametrize("count", [0, 1, 31, 33, 5000])
@pytest.mark.parametrize(("threads", "warp"), [(1, 1), (32, 32), (512, 32)])
def test_the_mean_of_the_rows(played: Played, count: int, threads: int, warp: int) -> None:
    results, out = torch.randn(count), torch.zeros(1, dtype=torch.float64)
    whole = Job(1, count, out.data_ptr(), None)
    assert played.mean_float(results, whole, Shape(threads, warp, 1, 1)) == 0
    expected = results.double().mean()[None]
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 3, 64, 100_000])
@pytest.mark.parametrize("columns", [1, 10, 1024, 1025, 5000, 5632, 5633, 100_000])
@pytest.mark.parametrize("kept_bytes", [0, 4, 8, 16])
def test_kept_numbers_fit_where_the_plan_puts_them(
    played: Played, rows: int, columns: int, kept_bytes: int
) -> None:
    plan = torch.zeros(4, dtype=torch.int64)
    played.row_plan(rows, columns, kept_bytes, plan)
    narrow, blocks, shared, scratch = plan.tolist()
    kept = kept_bytes * columns
    assert shared <= 48 * 1024, "more than every device gives a block"
    assert 1 <= blocks <= rows
    if narrow:
        assert columns <= 1024
        assert (shared, scratch) == (4 * kept, 0)
    else:
        assert shared + scratch // blocks == 512 * 8 + kept
