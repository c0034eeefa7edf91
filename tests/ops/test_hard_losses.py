"""Every loss where it is hard: huge logits, strides, -inf, NaN and labels that are no classes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fededge import ops
from tests.ops.test_losses import EXACT, SEEDS, STRIDED, agree, draw, labels, softmax
from tests.ops.test_wide_losses import LOSSES, SHAPES, Wide, cross_entropy, few, wide_losses

pytestmark = pytest.mark.usefixtures("implementation")

FULL = SHAPES.filter(lambda shape: shape[0] > 0)
LABELLED = [name for name in LOSSES if name not in ("soft", "distillation")]
KINDS = st.sampled_from(["as it is", *STRIDED])


def coarse(x: Tensor) -> Tensor:
    """Multiples of 1/32: sums of two, and their quarters, have no rounding in float32 either."""
    return (32 * x).round() / 32


def strided(kind: str, x: Tensor) -> Tensor:
    return x if kind == "as it is" else STRIDED[kind](x)


class Hard(Wide):
    """Numbers that float32 adds up exactly, so that a loss's own error is all that is seen."""

    def __init__(
        self, seed: int, shape: tuple[int, int], dtype: torch.dtype, size: float, ruled_out: bool
    ) -> None:
        super().__init__(seed, shape, dtype)
        rows, classes = shape
        self.scale = ((labels(seed, classes, 4) + 1) / 4).to(dtype)
        long = coarse(draw(seed + 3, 2 * classes - 1)).to(dtype)
        if ruled_out:
            long[1::2] = -math.inf  # a label's own class lies at an even place, and stays
        self.A, self.Delta = long.unfold(0, classes, 1), long.exp().unfold(0, classes, 1)
        self.teacher = coarse(draw(seed + 4, rows, classes, size=size)).to(dtype)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("name", LOSSES)
@few
@given(FULL, SEEDS, st.sampled_from([3.0, 40.0, 1e4]), st.booleans(), KINDS)
@example((5000, 11), 1, 1e4, True, "transposed")
@example((11, 5000), 1, 1e4, True, "every other column")
@example((3, 2), 1, 1e4, True, "columns of more")
def test_huge_logits_strides_and_ruled_out_classes(
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, int],
    seed: int,
    size: float,
    ruled_out: bool,
    kind: str,
) -> None:
    """LfD's margin rules nothing out: its target would have to be 0 there."""
    hard = Hard(seed, shape, dtype, size, ruled_out and name != "lfd")
    ours, expected = wide_losses(hard)[name]
    agree(
        dtype,
        lambda z: ours(strided(kind, z)),
        expected,
        coarse(draw(seed, *shape, size=size)),
    )


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("scaled", ["", "z", "added"])
@few
@given(FULL, SEEDS, st.sampled_from([3.0, 1e4]), KINDS)
@example((5000, 11), 1, 3.0, "transposed")
@example((11, 5000), 1, 1e4, "every other row")
def test_both_gradients_of_fused_logits(
    scaled: str, dtype: torch.dtype, shape: tuple[int, int], seed: int, size: float, kind: str
) -> None:
    """With a scale of either they differ."""
    y, hard = labels(seed, *shape), Hard(seed, shape, dtype, size, False)
    scale, one = hard.scale, torch.ones((), dtype=torch.float64)
    k: dict[str, Any] = {"z": {"scale": scale}, "added": {"added_scale": scale}}.get(scaled, {})
    of_z, of_added = (scale.double() if scaled == part else one for part in ("z", "added"))

    def ours(z: Tensor, a: Tensor) -> Tensor:
        return ops.label_loss(strided(kind, z), (y,), added=strided(kind, a), **k)

    agree(
        dtype,
        ours,
        lambda z, a: cross_entropy(of_z * z + of_added * a, y),
        coarse(draw(seed, *shape, size=size)),
        hard.teacher.double(),
    )


@pytest.mark.parametrize("name", LOSSES)
@few
@given(FULL, SEEDS)
@example((5000, 11), 1)
@example((11, 5000), 1)
def test_a_nan_reaches_its_own_row_and_the_loss(
    name: str, shape: tuple[int, int], seed: int
) -> None:
    """The other rows' slopes stay, but for a rounding: rows computed together go one way."""
    wide = Wide(seed, shape, torch.float32)
    loss = wide_losses(wide)[name][0]
    row = seed % shape[0]
    column = (int(wide.y[row]) + 1 + seed % (shape[1] - 1)) % shape[1]  # any but the label's
    slopes = []
    for value in (0.5, math.nan):
        z = draw(seed, *shape).float()
        z[row, column] = value
        found = loss(z.requires_grad_())
        assert bool(found.isnan()) == math.isnan(value)
        slopes.append(torch.autograd.grad(found, z)[0])
    others = torch.arange(shape[0]) != row
    assert slopes[1][row, column].isnan()
    assert slopes[0].isfinite().all()
    torch.testing.assert_close(
        slopes[0][others], slopes[1][others], rtol=1e-5, atol=1e-5 / shape[0]
    )


@pytest.mark.parametrize("name", LABELLED)
@few
@given(FULL, SEEDS, st.sampled_from(["before", "after", "far", "least"]))
@example((5000, 11), 4999, "after")
@example((11, 5000), 0, "least")
def test_a_label_that_is_no_class_is_named_at_any_shape(
    name: str, shape: tuple[int, int], seed: int, which: str
) -> None:
    wide = Wide(seed, shape, torch.float32)
    loss = wide_losses(wide)[name][0]
    label = {"before": -1, "after": shape[1], "far": 2**40, "least": -(2**63)}[which]
    row = seed % shape[0]
    (wide.other if name == "fedacd+mixup" else wide.y)[row] = label
    with pytest.raises(IndexError, match=f": label {label} of row {row} is not one of {shape[1]} "):
        loss(torch.zeros(shape))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@few
@given(FULL, SEEDS, st.sampled_from([3.0, 1e4]), KINDS)
@example((5000, 11), 1, 1e4, "transposed")
@example((11, 5000), 1, 1e4, "every other column")
def test_probability_sums_of_hard_inputs(
    dtype: torch.dtype, shape: tuple[int, int], seed: int, size: float, kind: str
) -> None:
    """Huge and strided logits; a NaN spoils its class alone."""
    z, y = coarse(draw(seed, *shape, size=size)).to(dtype), labels(seed, *shape)
    met, place = y.unique(return_inverse=True)
    expected = torch.zeros(len(met), shape[1], dtype=torch.float64)
    expected.index_add_(0, place, softmax(z.double()))
    row = seed % shape[0]
    for value in (None, math.nan):
        if value is not None:
            z[row, seed % shape[1]] = value
            expected[place[row]] = value
        num = torch.zeros(shape[1], shape[1], dtype=torch.float64)
        den = torch.zeros(shape[1], dtype=torch.float64)
        ops.probability_sums_(num, den, strided(kind, z), (y,))
        torch.testing.assert_close(
            num[met], expected, rtol=EXACT[dtype], atol=EXACT[dtype], equal_nan=True
        )
        assert torch.equal(den, y.bincount(minlength=shape[1]).double())


@pytest.mark.parametrize("spoiled", [math.nan, math.inf, -math.inf, 3e4], ids=str)
@pytest.mark.parametrize("mixed", [False, True], ids=["labels", "mixup"])
@pytest.mark.parametrize("classes", [2, 10, 31, 62, 100, 200])
def test_a_row_has_the_same_bits_whatever_its_neighbours_are(
    classes: int, mixed: bool, spoiled: float
) -> None:
    """Rows are computed several at once, and FedACD's loss has a second way for hard ones."""
    rows = 37
    A = draw(2, classes, classes)
    y, other = labels(3, rows, classes), labels(4, rows, classes)
    labellings, shares = ((y, other), (0.25, 0.75)) if mixed else ((y,), (1.0,))

    def gradient(z: Tensor) -> Tensor:
        z = z.clone().requires_grad_()
        ops.label_loss(z, labellings, shares, shift=A, factor=A.exp(), flat=1.0).backward()
        assert z.grad is not None
        return z.grad

    z = draw(1, rows, classes)
    hard = z.clone()
    hard[[3, 17, 36], 1] = spoiled
    rest = torch.ones(rows, dtype=torch.bool)
    rest[[3, 17, 36]] = False
    assert torch.equal(gradient(hard)[rest], gradient(z)[rest])
