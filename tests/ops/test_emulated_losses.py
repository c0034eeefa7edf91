"""The losses of labels as a GPU runs them, played on the CPU: warps and blocks of any width."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from tests.ops.playing import Job, Played, Shape, pointers

# Threads that have a row together, and how many of them are a warp: within and beyond one warp.
WARPS = [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64)]
BLOCKS = [(4, 2), (64, 32), (128, 32), (64, 1)]
COLUMNS = [2, 3, 10, 31, 32, 33, 100, 1000, 2500]
NAN = math.nan


@dataclass
class Loss:
    """The arguments of one call: the losses of csrc/kernels/label_loss.h."""

    z: Tensor
    labels: list[Tensor] = field(default_factory=list)
    shares: list[float] = field(default_factory=lambda: [1.0])
    weight: float = 1.0
    flat: float = 0.0
    soft: float = 0.0
    scale: Tensor | None = None
    added: Tensor | None = None
    added_scale: Tensor | None = None
    shift: Tensor | None = None
    target: Tensor | None = None
    factored: bool = False

    def plainly(self) -> Tensor:
        """Each row's loss, in float64 and as the formulas are written."""
        z = self.z.double()
        if not self.labels:
            return self.soft * self._cross_entropy(z, None)
        total = torch.zeros(len(z), dtype=torch.float64)
        for y, share in zip(self.labels, self.shares, strict=True):
            hard = cross_entropy(self._adjusted(z, y), y, reduction="none")
            loss = self.weight * hard + self.flat * flattening(z, y)
            if self.target is not None:
                loss = loss + self.soft * self._cross_entropy(z, y)
            total = total + share * loss
        return total

    def _cross_entropy(self, z: Tensor, y: Tensor | None) -> Tensor:
        assert self.target is not None
        logs = log_softmax(self._adjusted(z, y), 1)
        target = self.target.double()
        return -torch.where(target == 0, 0.0, target * logs).sum(1)

    def _adjusted(self, z: Tensor, y: Tensor | None) -> Tensor:
        u = z if self.scale is None else z * self.scale.double()
        if self.added is not None:
            scale = 1.0 if self.added_scale is None else self.added_scale.double()
            u = u + scale * self.added.double()
        if self.shift is None:
            return u
        return u + (self.shift if self.shift.dim() == 1 or y is None else self.shift[y]).double()

    def play(
        self, played: Played, threads: int, warp: int, groups: int = 3, seed: int = 1
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Losses of the rows, gradients by z and by what is added, and a label outside or None."""
        rows, columns = self.z.shape
        results, dz = self.z.new_full((rows,), NAN), self.z.new_full((rows, columns), NAN)
        scaled = self.scale is not None or self.added_scale is not None
        apart = self.added is not None and (scaled or bool(self.flat))
        dadded = torch.full_like(dz, NAN) if apart else None
        factor = self.shift.exp() if self.factored and self.shift is not None else None
        matrices = [self.z, self.scale, self.added, self.added_scale]
        matrices += [self.shift, factor, self.target]
        labels = [*self.labels, None, None][:2]
        shares = [*self.shares, 0.0, 0.0][:2]
        strides = [m.stride(0) if m is not None and m.dim() == 2 else 0 for m in matrices]
        numbers = [*shares, self.weight, self.flat, self.soft, math.log(max(columns - 1, 1))]
        outside = nobody()
        call = (
            played.label_loss_double if results.dtype == torch.float64 else played.label_loss_float
        )
        code = call(
            pointers([*matrices, dz, dadded, *labels]),
            torch.tensor(strides),
            torch.tensor(numbers, dtype=torch.float64),
            len(self.labels),
            job(self.z, results, outside),
            Shape(threads, warp, groups, seed),
        )
        assert code == 0, "the threads did not all come to every exchange"
        return results, dz, dz if dadded is None else dadded, int(outside)


def nobody() -> Tensor:
    """The place for a label outside of the classes."""
    return torch.tensor([torch.iinfo(torch.int64).min])


def job(z: Tensor, results: Tensor | None, outside: Tensor) -> Job:
    where = None if results is None else results.data_ptr()
    return Job(z.shape[0], z.shape[1], where, outside.data_ptr())


def flattening(z: Tensor, y: Tensor) -> Tensor:
    """FedACD's eq. 7: the sum over the classes but y of p log((C - 1) p / (1 - p_y))."""
    p, own = z.softmax(1), torch.nn.functional.one_hot(y, z.shape[1]).bool()
    q = p.masked_fill(own, 0.0)
    rest = q.sum(1, keepdim=True)
    logs = torch.where(own, 0.0, ((z.shape[1] - 1) * q / rest).masked_fill(own, 1.0).log())
    return (q * logs).sum(1)


def draw(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    g = torch.Generator().manual_seed(rows * 1000 + columns)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    return {
        "z": 3 * normal(rows, columns),
        "labels": [torch.randint(columns, (rows,), generator=g) for _ in range(2)],
        "scale": normal(columns).abs() + 0.5,
        "added": normal(rows, columns),
        "added_scale": normal(columns),
        "vector": normal(columns),
        "table": normal(columns, columns) if columns <= 100 else None,
        "target": normal(rows, columns).softmax(1),
    }


def losses(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> dict[str, Loss]:
    """The ways in which methods use the kernel."""
    d = draw(rows, columns, dtype)
    z, (y, other) = d["z"], d["labels"]
    both: dict[str, Any] = {"labels": [y, other], "shares": [0.3, 0.7]}
    table = d["vector"] if d["table"] is None else d["table"]
    return {
        "plain": Loss(z, [y]),
        "adjusted": Loss(z, [y], shift=d["vector"]),
        "by label": Loss(z, [y], shift=table),
        "mixed by label": Loss(z, **both, shift=table),
        "restricted": Loss(z, [y], scale=d["scale"]),
        "fused logits": Loss(z, [y], added=d["added"], added_scale=d["added_scale"]),
        "restricted and fused": Loss(z, [y], added=d["added"], scale=d["scale"]),
        "distilled": Loss(z, [y], target=d["target"], soft=0.4),
        "target alone": Loss(z, shares=[], target=d["target"], soft=1.0, added=d["added"]),
        "flattened": Loss(z, [y], flat=0.7),
        "acd": Loss(z, [y], flat=0.7, shift=table, factored=True),
        "acd mixed": Loss(z, **both, flat=0.7, shift=table, factored=True),
        "all": Loss(
            z,
            **both,
            flat=0.7,
            soft=0.4,
            scale=d["scale"],
            added=d["added"],
            added_scale=d["added_scale"],
            shift=table,
            target=d["target"],
        ),
    }


def check(loss: Loss, played: Played, threads: int, warp: int, tolerance: float = 1e-9) -> None:
    """Losses and gradients against float64 autograd of the plain formula."""
    z = loss.z.double().requires_grad_()
    added = None if loss.added is None else loss.added.double().requires_grad_()
    plain = Loss(**{**loss.__dict__, "z": z, "added": added})
    expected = plain.plainly()
    expected.mean().backward()
    results, dz, dadded, _ = loss.play(played, threads, warp)
    torch.testing.assert_close(results.double(), expected.detach(), rtol=tolerance, atol=tolerance)
    assert z.grad is not None
    torch.testing.assert_close(dz.double(), z.grad, rtol=tolerance, atol=tolerance)
    if added is not None:
        torch.testing.assert_close(dadded.double(), added.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", losses(1, 2))
@pytest.mark.parametrize(("threads", "warp"), WARPS + BLOCKS)
def test_every_loss_on_every_width(played: Played, name: str, threads: int, warp: int) -> None:
    check(losses(5, 37)[name], played, threads, warp)


@pytest.mark.parametrize("name", losses(1, 2))
@pytest.mark.parametrize("columns", COLUMNS)
def test_every_loss_with_any_number_of_classes(played: Played, name: str, columns: int) -> None:
    check(losses(3, columns)[name], played, 32, 32)
    if columns in (2, 33, 2500):
        check(losses(3, columns)[name], played, 64, 16)


@pytest.mark.parametrize("name", losses(1, 2))
def test_single_precision(played: Played, name: str) -> None:
    check(losses(6, 100, torch.float32)[name], played, 32, 32, tolerance=2e-5)


def test_the_order_of_the_threads_does_not_change_a_bit(played: Played) -> None:
    """Other seeds let other threads go first: a race would show as another number."""
    loss = losses(4, 70)["all"]
    first = loss.play(played, 64, 8, seed=0)
    for seed in range(1, 8):
        again = loss.play(played, 64, 8, seed=seed)
        assert all(torch.equal(a, b) for a, b in zip(first[:3], again[:3], strict=True))


def test_threads_that_stay_away_from_an_exchange_are_found_out(played: Played) -> None:
    assert played.stay_away(4, 4) == 1
    assert played.stay_away(8, 2) == 1


@pytest.mark.parametrize(("threads", "warp"), [(1, 1), (32, 32), (64, 32)])
def test_a_class_that_the_shift_rules_out(played: Played, threads: int, warp: int) -> None:
    """log 0 = -inf: probability 0, gradient 0, for the target's zeros as well."""
    loss = losses(4, 40)["adjusted"]
    assert loss.shift is not None
    loss.shift[7] = -math.inf
    loss.labels = [torch.where(loss.labels[0] == 7, 0, loss.labels[0])]
    check(loss, played, threads, warp)
    _, dz, *_ = loss.play(played, threads, warp)
    assert dz[:, 7].tolist() == [0.0] * 4


def test_a_row_that_is_not_a_number_spoils_no_other(played: Played) -> None:
    for bad in (NAN, math.inf):
        for name in ("plain", "acd", "all"):
            loss = losses(4, 40)[name]
            loss.z[2, 5] = bad
            results, dz, *_ = loss.play(played, 32, 32)
            assert results.isnan().tolist() == [False, False, True, False], name
            assert dz.isnan().any(1).tolist() == [False, False, True, False], name


@pytest.mark.parametrize("label", [-1, 40, 2**31, -(2**63) + 1])
def test_a_label_outside_is_reported_and_spoils_its_row_alone(played: Played, label: int) -> None:
    for name in ("plain", "acd mixed"):
        loss = losses(4, 40)[name]
        loss.labels[-1][2] = label
        results, dz, _, outside = loss.play(played, 32, 32)
        assert outside == label
        assert results.isnan().tolist() == [False, False, True, False]
        assert dz.isnan().all(1).tolist() == [False, False, True, False]


def test_labels_inside_report_nothing(played: Played) -> None:
    *_, outside = losses(4, 40)["plain"].play(played, 32, 32)
    assert outside == -(2**63)


def test_rows_that_do_not_lie_side_by_side(played: Played) -> None:
    for name in ("restricted", "all"):
        loss = losses(5, 37)[name]
        wide = torch.full((5, 50), NAN, dtype=torch.float64)
        wide[:, :37] = loss.z
        loss.z = wide[:, :37]
        check(loss, played, 16, 16)
