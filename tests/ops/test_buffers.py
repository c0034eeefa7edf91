"""Sums over plain buffers: NumPy's, and Python's own, without a tensor."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from fededge.federated import sums

if TYPE_CHECKING or sums.CHOICE.build is not None:
    from fededge import _sums

pytestmark = pytest.mark.skipif(sums.CHOICE.build is None, reason=sums.CHOICE.reason)

Vector = NDArray[np.generic]
SIZES = (0, 1, 7, 1000, 70_001)


def draw(size: int, kind: type[np.generic]) -> Vector:
    numbers = np.random.default_rng(size).normal(scale=40, size=size)
    return numbers.clip(-127, 127).astype(kind)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("x", [np.float32, np.float16])
@pytest.mark.parametrize("acc", [np.float32, np.float64])
def test_accumulate_adds_in_the_precision_of_the_sum(
    acc: type[np.generic], x: type[np.generic], size: int
) -> None:
    total, model = draw(size, acc), draw(size, x)
    expected = total + acc(0.3) * model.astype(acc)
    _sums.accumulate_buffer(total, model, 0.3)
    np.testing.assert_array_equal(total, expected)


def test_every_float16_number_is_added_exactly() -> None:
    """All 65,536 of them: zeros of both signs, subnormal numbers, infinities, NaN."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    acc = np.full(2**16, -0.0, dtype=np.float32)
    _sums.accumulate_buffer(acc, x, 1.0)
    np.testing.assert_array_equal(acc, x.astype(np.float32))
    number = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(acc)[number], np.signbit(x)[number])


def test_a_sum_in_float64_keeps_what_float32_would_lose() -> None:
    """2**24 + 1 has no float32: a float32 sum of ones would stop growing there."""
    acc = np.full(3, 2.0**24)
    _sums.accumulate_buffer(acc, np.ones(3, dtype=np.float32), 1.0)
    assert acc.tolist() == [2.0**24 + 1] * 3


def test_pythons_own_buffers_will_do() -> None:
    total = array.array("d", [1.0, 2.0])
    _sums.accumulate_buffer(total, memoryview(array.array("f", [4.0, 8.0])), 0.5)
    assert total.tolist() == [3.0, 6.0]


def test_arguments_that_do_not_fit_are_named() -> None:
    five, q = np.zeros(5, dtype=np.float32), np.zeros(5, dtype=np.int8)
    with pytest.raises(ValueError, match="x has 4 elements, expected 5"):
        _sums.accumulate_buffer(five, np.zeros(4, dtype=np.float32), 1.0)
    with pytest.raises(TypeError, match="acc has numbers of kind 'b', expected one of 'fd'"):
        _sums.accumulate_buffer(q, five, 1.0)
    with pytest.raises(ValueError, match="x must be a flat vector without gaps"):
        _sums.accumulate_buffer(five, np.zeros(10, dtype=np.float32)[::2], 1.0)
    with pytest.raises(ValueError, match="acc shares memory with x"):
        _sums.accumulate_buffer(five[1:], five[:-1], 1.0)


def test_a_read_only_buffer_is_refused() -> None:
    with pytest.raises((BufferError, ValueError), match=r"read-only|not writable|writable"):
        _sums.accumulate_buffer(bytes(8), np.zeros(8, dtype=np.float32), 1.0)
