"""Dataset: what it refuses, subsets, counts, and exact statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fededge.data import Dataset
from fededge.data.dataset import statistics
from fededge.errors import DataError


def make(**changes: object) -> Dataset:
    values: dict[str, object] = {
        "x": torch.arange(5 * 2 * 3 * 4, dtype=torch.uint8).reshape(5, 2, 3, 4),
        "y": torch.tensor([0, 2, 2, 0, 2]),
        "labels": ("a", "b", "c"),
        "mean": (0.1, 0.2),
        "std": (0.3, 0.4),
    }
    return Dataset(**{**values, **changes})  # type: ignore[arg-type]


def test_counts_include_absent_classes() -> None:
    assert make().counts().tolist() == [2, 0, 3]
    assert make().counts().dtype == torch.int64
    assert len(make()) == 5
    assert make().shape == (2, 3, 4)


@pytest.mark.parametrize("indices", [[3, 1], np.array([3, 1]), torch.tensor([3, 1])])
def test_subset_keeps_order_labels_and_statistics(indices: object) -> None:
    whole = make()
    part = whole.subset(indices)  # type: ignore[arg-type]
    assert part.y.tolist() == [0, 2]
    assert torch.equal(part.x, whole.x[[3, 1]])
    assert (part.labels, part.mean, part.std) == (whole.labels, whole.mean, whole.std)
    assert len(whole.subset(np.array([], np.int64))) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(5, 2, 3, 4)}, "uint8"),
        ({"x": torch.zeros(5, 3, 4, dtype=torch.uint8)}, r"\[N, C, H, W\]"),
        ({"y": torch.tensor([0, 1])}, "5 examples"),
        ({"y": torch.zeros(5, dtype=torch.int32)}, "int64"),
        ({"y": torch.tensor([0, 1, 2, 3, 0])}, "0 to 3 do not fit 3 classes"),
        ({"y": torch.tensor([0, 1, 2, -1, 0])}, "-1"),
        ({"mean": (0.1,)}, "2 channels"),
    ],
)
def test_inconsistent_data_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(**changes)


def test_statistics_agree_with_numpy() -> None:
    x = np.random.default_rng(0).integers(0, 256, (50, 3, 6, 7), dtype=np.uint8)
    mean, std = statistics(torch.from_numpy(x))
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, x.std((0, 2, 3)) / 255, rtol=1e-12)


def test_a_constant_channel_can_still_divide() -> None:
    mean, std = statistics(torch.full((2, 1, 3, 3), 51, dtype=torch.uint8))
    assert mean == pytest.approx((0.2,))
    assert std == (1 / 255,)
