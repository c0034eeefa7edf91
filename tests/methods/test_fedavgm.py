"""FedAvgM against two rounds worked by hand, and as the other half of device-side methods."""

from __future__ import annotations

import pytest

from fededge.errors import MethodError
from fededge.methods import method
from tests.merging import merged, update

W = (0.0, 10.0, 5.0)
ROUNDS = [
    {"a": update(1, 1.0, 10.0, 1.0), "b": update(3, 5.0, 2.0, 9.0)},
    {"a": update(2, 6.0, 4.0, 0.0), "c": update(2, 8.0, 8.0, 2.0)},
]


def test_two_rounds_by_hand() -> None:
    """β = 0.9, w = (0, 10), and a running statistic that is averaged by the examples: 7, then 1.

    Round 1: mean (4, 4), v = w - mean = (-4, 6), w ← w - v = (4, 4).
    Round 2: mean (7, 6), v = 0.9 (-4, 6) + (-3, -2) = (-6.6, 3.4), w ← (10.6, 0.6).
    """
    first, second = merged("fedavgm", W, ROUNDS)
    assert first == pytest.approx([4, 4, 7])
    assert second == pytest.approx([10.6, 0.6, 1])


def test_two_damped_rounds_by_hand() -> None:
    """Round 1: v = 0.1 (-4, 6) = (-0.4, 0.6), w = (0.4, 9.4).

    Round 2: v = 0.9 (-0.4, 0.6) + 0.1 (-6.6, 3.4) = (-1.02, 0.88), w = (1.42, 8.52).
    """
    first, second = merged("fedavgm(damped=true)", W, ROUNDS)
    assert first == pytest.approx([0.4, 9.4, 7])
    assert second == pytest.approx([1.42, 8.52, 1])


@pytest.mark.parametrize("damped", ["true", "false"])
def test_without_momentum_it_is_fedavg(damped: str) -> None:
    for ours, plain in zip(
        merged(f"fedavgm(beta=0, damped={damped})", W, ROUNDS),
        merged("fedavg", W, ROUNDS),
        strict=True,
    ):
        assert ours == pytest.approx(plain)


def test_a_device_half_beside_it_changes_nothing_at_the_coordinator() -> None:
    assert merged("fedprox(mu=0.1)+fedavgm", W, ROUNDS) == merged("fedavgm", W, ROUNDS)


def test_the_weights_may_be_another_layers() -> None:
    """FedRS counts every update the same: the mean of round 1 is (3, 6), and v = (-3, 4)."""
    first, _ = merged("fedrs+fedavgm", W, ROUNDS)
    assert first == pytest.approx([3, 6, 5])


@pytest.mark.parametrize("beta", [-0.1, 1.0])
def test_a_beta_that_is_no_momentum_is_refused(beta: float) -> None:
    with pytest.raises(MethodError, match=r"beta must lie from 0 to below 1$"):
        method(f"fedavgm(beta={beta})")


def test_two_global_steps_are_refused() -> None:
    with pytest.raises(MethodError, match=r"^fedavgm and fedadam cannot be combined"):
        method("fedavgm+fedadam")
