"""The running sum of models: float32, 16-bit and int8 inputs, against float64 arithmetic."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fededge import ops
from fededge.errors import LayoutError, MethodError
from tests.ops.inputs import GRAIN, SEEDS, SIZES, many, vectors

pytestmark = pytest.mark.usefixtures("implementation")

KINDS = (torch.float32, torch.float16, torch.bfloat16)


@many
@given(SIZES, SEEDS, st.floats(-100, 100), st.sampled_from(KINDS))
def test_accumulate_in_double_is_exact_to_the_last_bits(
    size: int, seed: int, weight: float, kind: torch.dtype
) -> None:
    start, x = vectors(size, seed, 2)
    acc, x = start.double(), x.to(kind)
    ops.accumulate_(acc, x, weight)
    torch.testing.assert_close(acc, start.double() + weight * x.double(), rtol=0, atol=1e-12)


@many
@given(SIZES, SEEDS, st.floats(-10, 10), st.sampled_from(KINDS))
def test_accumulate_in_single_rounds_like_float32(
    size: int, seed: int, weight: float, kind: torch.dtype
) -> None:
    acc, x = vectors(size, seed, 2)
    x = x.to(kind)
    expected = acc.double() + weight * x.double()
    ops.accumulate_(acc, x, weight)
    torch.testing.assert_close(acc.double(), expected, rtol=1e-6, atol=1e-5)


def test_accumulate_keeps_in_double_what_single_would_lose() -> None:
    """2**24 + 1 has no float32: a float32 sum of ones would stop growing there."""
    acc = torch.full((3,), 2.0**24, dtype=torch.float64)
    ops.accumulate_(acc, torch.ones(3), 1.0)
    assert acc.tolist() == [2.0**24 + 1] * 3


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_every_16_bit_number_arrives_as_it_is(kind: torch.dtype) -> None:
    """All 65,536 of them: zeros of both signs, subnormal numbers, infinities, NaN."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(kind)
    acc = torch.full((2**16,), -0.0)
    ops.accumulate_(acc, x, 1.0)
    torch.testing.assert_close(acc, x.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(acc.signbit() & ~x.isnan(), x.signbit() & ~x.isnan())


@st.composite
def quantised(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """An int8 vector in tensors of drawn sizes, empty ones among them: q, ends, scales."""
    sizes = draw(st.lists(st.sampled_from([0, 0, 1, 3, 17, 64, 1000, GRAIN + 1]), max_size=9))
    generator = torch.Generator().manual_seed(draw(SEEDS))
    q = torch.randint(-128, 128, (sum(sizes),), dtype=torch.int8, generator=generator)
    ends = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    return q, ends, torch.rand(len(sizes), generator=generator)


@many
@given(quantised(), st.floats(-10, 10), st.sampled_from([torch.float32, torch.float64]))
def test_each_tensor_of_an_int8_model_has_its_own_scale(
    model: tuple[Tensor, Tensor, Tensor], weight: float, kind: torch.dtype
) -> None:
    q, ends, scales = model
    (start,) = vectors(len(q), 1, 1)
    expected = start.double()
    before = 0
    for end, scale in zip(ends.tolist(), scales.tolist(), strict=True):
        expected[before:end] += weight * scale * q[before:end].double()
        before = end
    acc = start.to(kind)
    ops.accumulate_int8_(acc, q, ends, scales, weight)
    exact = kind == torch.float64
    torch.testing.assert_close(
        acc.double(), expected, rtol=1e-15 if exact else 1e-6, atol=1e-12 if exact else 2e-4
    )


def test_an_int8_model_of_a_layout_is_one_call() -> None:
    """The ends are the layout's: weight [2, 2] and bias [2] of one linear layer, worked by hand.

    0.5 * 0.1 * [10, -20, 30, -128] and 0.5 * 2 * [1, 127].
    """
    from fededge.flat import FlatModel

    layout = FlatModel(torch.nn.Linear(2, 2)).layout
    ends = torch.tensor([entry.offset + entry.size for entry in layout.entries])
    acc = torch.zeros(layout.size, dtype=torch.float64)
    q = torch.tensor([10, -20, 30, -128, 1, 127], dtype=torch.int8)
    ops.accumulate_int8_(acc, q, ends, torch.tensor([0.1, 2.0]), 0.5)
    expected = torch.tensor([0.5, -1.0, 1.5, -6.4, 1.0, 127.0], dtype=torch.float64)
    torch.testing.assert_close(acc, expected, rtol=1e-7, atol=0)


GOOD: dict[str, Any] = {
    "acc": torch.zeros(4),
    "q": torch.zeros(4, dtype=torch.int8),
    "ends": torch.tensor([1, 4]),
    "scales": torch.ones(2),
    "weight": 1.0,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": torch.zeros(4)}, r"q is torch\.float32, it must be torch\.int8"),
        ({"q": torch.zeros(3, dtype=torch.int8)}, "q has 3 elements, expected 4"),
        ({"ends": torch.tensor([1.0, 4.0])}, r"ends is torch\.float32, it must be torch\.int64"),
        ({"ends": torch.tensor([1, 5])}, "the last of ends is 5, expected 4"),
        ({"ends": torch.tensor([5, 4])}, r"ends must ascend from 0, but ends\[1\] does not"),
        ({"ends": torch.tensor([-1, 4])}, r"ends must ascend from 0, but ends\[0\] does not"),
        ({"ends": torch.tensor([4])}, "there are 1 ends but 2 scales"),
        ({"scales": torch.ones(2).double()}, r"scales is torch\.float64"),
        ({"scales": torch.ones(2, device="meta")}, "scales is on meta, expected cpu"),
    ],
)
def test_what_is_wrong_with_a_quantised_model_is_said(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=f"^accumulate_int8_: {message}"):
        ops.accumulate_int8_(**GOOD | wrong)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_refused(weight: float) -> None:
    with pytest.raises(MethodError, match=f"weight is {weight}, it must be a finite number"):
        ops.accumulate_int8_(**GOOD | {"weight": weight})
    with pytest.raises(MethodError, match=f"weight is {weight}, it must be a finite number"):
        ops.accumulate_(GOOD["acc"], GOOD["acc"].clone(), weight)
