"""Bounds on the influence of one device, relative to the others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fededge.federated.bounds import capped, norm_limit, suspects

WEIGHTS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.one_of(st.just(0.0), st.floats(1e-3, 1e15)),
    min_size=1,
    max_size=8,
)


def test_the_limit_is_some_times_the_median_and_devices_without_data_do_not_count() -> None:
    assert norm_limit([1.0, 2.0, 4.0], 10.0, math.inf) == 20.0
    assert norm_limit([1.0, 2.0, 4.0, 0.0, 0.0, 0.0], 10.0, math.inf) == 20.0
    assert norm_limit([1.0, 2.0, 4.0], 0.0, 5.0) == math.inf


def test_with_fewer_than_three_devices_the_model_itself_is_the_measure() -> None:
    assert norm_limit([1.0, 1e30], 10.0, 7.0) == 70.0
    assert norm_limit([], 10.0, 0.0) == 10.0, "a model of zeros may change too"


@pytest.mark.parametrize("lie", [1e-30, 1e30])
def test_a_third_of_the_fleet_cannot_move_the_limit_beyond_the_others(lie: float) -> None:
    honest = [0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
    assert 8.0 <= norm_limit([*honest, lie, lie, lie], 10.0, math.inf) <= 13.0


@pytest.mark.parametrize(("fleet", "heard"), [(4, 3), (6, 4), (7, 5), (1000, 30)])
def test_the_first_reports_alone_do_not_set_the_norm_limit(fleet: int, heard: int) -> None:
    assert norm_limit([1e-9] * (heard - 1), 10.0, 7.0, fleet) == 70.0, "the model's own norm"
    assert norm_limit([1e-9] * heard, 10.0, 7.0, fleet) == pytest.approx(1e-8)
    without_data = [0.0] * 30
    assert norm_limit([*without_data, *[1e-9] * heard], 10.0, 7.0, fleet + 30) < 1.0


def test_a_device_that_claims_almost_everything_gets_its_share() -> None:
    weights = {"a": 1e15, "b": 100.0, "c": 50.0, "d": 50.0}
    assert capped(weights, 0.5) == {"a": 200.0, "b": 100.0, "c": 50.0, "d": 50.0}


def test_two_devices_that_claim_almost_everything_share_the_share_of_two() -> None:
    """c = 0.4 · (2 c + 20) = 40."""
    weights = {"a": 1e15, "b": 1e12, "c": 10.0, "d": 10.0}
    assert capped(weights, 0.4) == pytest.approx({"a": 40.0, "b": 40.0, "c": 10.0, "d": 10.0})


def test_the_weights_of_two_devices_are_not_capped() -> None:
    assert capped({"a": 99.0, "b": 1.0, "c": 0.0}, 0.5) == {"a": 99.0, "b": 1.0, "c": 0.0}


@given(WEIGHTS, st.floats(0.01, 1.0))
def test_nobody_has_more_than_the_share_and_nobody_gains(
    weights: dict[str, float], share: float
) -> None:
    after = capped(weights, share)
    counted = sum(weight > 0 for weight in weights.values())
    assert all(0 <= after[device] <= weights[device] for device in weights)
    assert all(after[device] > 0 for device in weights if weights[device] > 0)
    if counted >= 3:
        most = max(share, 1 / counted) * sum(after.values())
        assert max(after.values()) <= most * (1 + 1e-9)
    within = max(weights.values()) <= share * sum(weights.values())
    if within or counted < 3:
        assert after == weights


def test_devices_with_outlying_numbers_are_suspected_first() -> None:
    facts = {
        "a": {"norm": 1.0, "slope": 10.0},
        "b": {"norm": 1e-3, "slope": 1e300},
        "c": {"norm": 2.0, "slope": 9.0},
        "d": {"norm": 1e20, "slope": 11.0},
    }
    assert suspects(facts)[:2] == ["b", "d"]
    assert sorted(suspects(facts)) == ["a", "b", "c", "d"]


def test_equal_suspects_are_sorted_by_id() -> None:
    assert suspects({"b": {"n": 1.0}, "a": {"n": 1.0}}) == ["a", "b"]
    assert suspects({"b": {}, "a": {}}) == ["a", "b"]
