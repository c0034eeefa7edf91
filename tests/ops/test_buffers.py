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
ENDS = {size: np.array([size // 3, size // 3, size], dtype=np.int64) for size in SIZES}
SCALES = np.array([0.5, 3.0, 0.125], dtype=np.float32)


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("acc", [np.float32, np.float64])
def test_int8_is_scaled_by_its_tensor(acc: type[np.generic], size: int) -> None:
    total, q = draw(size, acc), draw(size, np.int8)
    factors = np.repeat(SCALES, np.diff(ENDS[size], prepend=0))
    expected = total.astype(np.float64) + 0.25 * factors * q.astype(np.float64)
    _sums.accumulate_int8_buffer(total, q, ENDS[size], SCALES, 0.25)
    np.testing.assert_allclose(total.astype(np.float64), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_dequantise_forgets_what_was_there(size: int) -> None:
    out, q = np.full(size, np.nan, dtype=np.float32), draw(size, np.int8)
    _sums.dequantise_buffer(out, q, ENDS[size], SCALES)
    factors = np.repeat(SCALES, np.diff(ENDS[size], prepend=0))
    np.testing.assert_array_equal(out, factors * q.astype(np.float32))


def test_pythons_own_buffers_will_do() -> None:
    total = array.array("d", [1.0, 2.0])
    _sums.accumulate_buffer(total, memoryview(array.array("f", [4.0, 8.0])), 0.5)
    assert total.tolist() == [3.0, 6.0]


def test_what_does_not_fit_is_named() -> None:
    five, q = np.zeros(5, dtype=np.float32), np.zeros(5, dtype=np.int8)
    ends = np.array([2, 5], dtype=np.int64)
    with pytest.raises(ValueError, match="x has 4 elements, expected 5"):
        _sums.accumulate_buffer(five, np.zeros(4, dtype=np.float32), 1.0)
    with pytest.raises(TypeError, match="acc has numbers of kind 'b', expected one of 'fd'"):
        _sums.accumulate_buffer(q, five, 1.0)
    with pytest.raises(ValueError, match="x must be a flat vector without gaps"):
        _sums.accumulate_buffer(five, np.zeros(10, dtype=np.float32)[::2], 1.0)
    with pytest.raises(ValueError, match="acc shares memory with x"):
        _sums.accumulate_buffer(five[1:], five[:-1], 1.0)
    with pytest.raises(ValueError, match="scales has 3 elements, expected 2"):
        _sums.accumulate_int8_buffer(five, q, ends, SCALES, 1.0)
    for wrong in ([2, 4], [6, 5], [-1, 5], [3, 2]):
        with pytest.raises(ValueError, match="ends must ascend from 0 to 5"):
            _sums.dequantise_buffer(five, q, np.array(wrong), SCALES[:2])


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises((BufferError, ValueError), match=r"read-only|not writable|writable"):
        _sums.accumulate_buffer(bytes(8), np.zeros(8, dtype=np.float32), 1.0)
