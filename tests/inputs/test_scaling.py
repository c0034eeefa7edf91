"""numpy and every release of Pillow scale images to the same pixels."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fededge.inputs.images import fitted, planes
from fededge.inputs.scaling import covered, fit

sides = st.integers(1, 120)


def test_four_pixels_become_two_by_hand() -> None:
    """Centres 1 and 3, reach 2: weights 3, 3, 1 sevenths from the left, and the same mirrored.

    (0·3 + 100·3 + 200·1) / 7 = 71.4 and (100·1 + 200·3 + 40·3) / 7 = 117.1.
    """
    rows = np.array([[0, 100, 200, 40]] * 4, np.uint8)
    assert fit(rows[None, None], 2, 2).tolist() == [[[[71, 117], [71, 117]]]]


def test_two_pixels_become_four_by_hand() -> None:
    """Centres 0.25, 0.75, 1.25 and 1.75 of old pixels at 0.5 and 1.5: between them it is a line."""
    rows = np.array([[0, 200]] * 2, np.uint8)
    assert fit(rows[None, None], 4, 4)[0, 0, 0].tolist() == [0, 50, 150, 200]


@pytest.mark.parametrize(
    ("size", "wanted", "expected"),
    [((40, 30), (28, 28), (30, 30)), ((30, 40), (10, 20), (20, 40)), ((9, 9), (2, 4), (4.5, 9))],
)
def test_the_largest_part_with_the_proportions_is_covered(
    size: tuple[int, int], wanted: tuple[int, int], expected: tuple[float, float]
) -> None:
    assert covered(size, wanted) == expected


def test_the_border_is_cropped() -> None:
    """An image of 3 x 1 pixels is cropped to the middle one."""
    row = np.array([[[[1, 77, 255]]]], np.uint8)
    assert fit(row, 1, 1).tolist() == [[[[77]]]]


@given(sides, sides, sides, sides, st.sampled_from([1, 3]), st.integers(0, 99))
def test_numpy_and_pillow_give_the_same_bits(
    wide: int, high: int, width: int, height: int, channels: int, seed: int
) -> None:
    """Larger, smaller, tall, flat; Pillow itself chooses another order for some of these."""
    noise = np.random.default_rng(seed).integers(0, 256, (high, wide, channels), np.uint8)
    image = PIL.Image.fromarray(noise[..., 0] if channels == 1 else noise)
    expected = planes(fitted(image, (width, height)))
    assert np.array_equal(fit(noise.transpose(2, 0, 1)[None], height, width)[0], expected)


@pytest.mark.parametrize("value", [0, 1, 127, 254, 255])
def test_a_flat_picture_stays_as_it_is(value: int) -> None:
    flat = np.full((1, 1, 999, 1234), value, np.uint8)
    assert (fit(flat, 28, 28) == value).all()
