"""Byzantine-robust aggregation, compared with numpy, and in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fededge.errors import ConfigError
from fededge.federated import robust
from fededge.federated.robust import Rows, krum, median, norm_of, trimmed_mean

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def rows_of(folder: Path, matrix: Matrix) -> Rows:
    devices = [f"device-{index:02d}" for index in range(len(matrix))]
    rows = Rows(folder / "rows.f32", devices, matrix.shape[1])
    rows.fill(lambda device: matrix[int(device[-2:])].copy())
    return rows


@pytest.fixture(params=[5, 6])
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return np.random.default_rng(0).normal(size=(request.param, 1000)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that there are many."""
    monkeypatch.setattr(robust, "BLOCK_NUMBERS", 64)


def test_the_blocks_are_the_whole(tmp_path: Path, matrix: Matrix) -> None:
    rows = rows_of(tmp_path, matrix)
    found = list(rows.blocks())
    assert len(found) > 50
    np.testing.assert_array_equal(np.concatenate([block for _, block in found], axis=1), matrix)
    rows.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_median_is_numpys(tmp_path: Path, matrix: Matrix) -> None:
    found = median(rows_of(tmp_path, matrix))
    np.testing.assert_array_equal(found, np.median(matrix, axis=0))


def test_the_trimmed_mean_leaves_out_both_ends(tmp_path: Path, matrix: Matrix) -> None:
    found = trimmed_mean(rows_of(tmp_path, matrix), 0.2)
    expected = np.sort(matrix.astype(np.float64), axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    whole = trimmed_mean(rows_of(tmp_path, matrix), 0.0)
    np.testing.assert_allclose(whole, matrix.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_one_hostile_update_moves_the_mean_but_not_the_others(tmp_path: Path) -> None:
    honest = np.random.default_rng(1).normal(size=(6, 200)).astype(np.float32)
    hostile = np.concatenate([honest, np.full((1, 200), 1e6, np.float32)])
    rows = rows_of(tmp_path, hostile)
    assert abs(hostile.mean()) > 1e5
    assert np.abs(median(rows)).max() < 4
    assert np.abs(trimmed_mean(rows, 0.2)).max() < 4
    assert krum(rows, 1) != "device-06"


def test_krum_takes_the_update_nearest_to_its_neighbours(tmp_path: Path) -> None:
    """On a line: 0, 1, 2, 3 and 100 with one hostile device, so two neighbours each. The squared
    distances to the nearest two are 1 + 4, 1 + 1, 1 + 1, 1 + 4 and 97² + 98²: of 1 and 2, which are
    equally near, the first.
    """
    line = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]], np.float32)
    assert krum(rows_of(tmp_path, line), 1) == "device-01"


def test_krum_says_how_many_updates_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"more than byzantine \+ 2 = 3 updates.*has 3"):
        krum(rows_of(tmp_path, np.zeros((3, 4), np.float32)), 1)


def test_a_norm_is_that_of_the_whole_vector() -> None:
    """Against float64: a million numbers in several blocks, and 3² + 4² = 5² by hand."""
    vector = np.random.default_rng(1).normal(size=1_000_003).astype(np.float32)
    expected = np.linalg.norm(vector.astype(np.float64))
    assert norm_of(len(vector), lambda span: vector[span]) == pytest.approx(expected, rel=1e-12)
    assert norm_of(2, lambda span: np.array([3.0, 4.0], np.float32)[span]) == 5.0
    assert norm_of(0, lambda span: vector[span]) == 0.0
