"""Partitions: who gets what, always the same, and skewed as much as was asked for."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fededge.data import local_split, partition
from fededge.data.partition import _repair
from fededge.errors import ConfigError

TEN = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 600))
COMPLETE = ("dirichlet:0.1", "dirichlet:5", "pathological:2", "incomplete", "uniform")

labels_of = st.builds(
    lambda classes, size, seed: np.random.default_rng(seed).integers(0, classes, size),
    st.integers(2, 12),
    st.integers(200, 600),
    st.integers(0, 2**32),
)


def counts(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def skew(labels: np.ndarray, parts: list[np.ndarray]) -> float:
    """Mean over devices of the total variation between their labels and everybody's."""
    table = counts(labels, parts)
    local = table / table.sum(1, keepdims=True)
    return float(np.abs(local - table.sum(0) / table.sum()).sum(1).mean() / 2)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    labels=labels_of,
    devices=st.integers(1, 12),
    spec=st.sampled_from(["dirichlet:0.05", "dirichlet:1", "dirichlet:1e-9", "uniform"]),
    seed=st.integers(0, 2**32),
)
def test_every_sample_goes_to_one_device(
    labels: np.ndarray, devices: int, spec: str, seed: int
) -> None:
    """Together the parts are all positions, once; none is below the minimum; parts are sorted."""
    parts = partition(labels, devices, spec, seed, min_size=5)
    assert len(parts) == devices
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= 5
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    labels=labels_of,
    devices=st.integers(1, 12),
    classes=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_pathological_gives_each_device_its_number_of_classes(
    labels: np.ndarray, devices: int, classes: int, seed: int
) -> None:
    """K classes a device; holders of a class differ by one at most and share it evenly.

    Each class has at least as many samples here as there are devices. Every class is held, and so
    every sample given, exactly when devices x K reaches the number of classes.
    """
    labels = np.concatenate([labels, np.repeat(np.unique(labels), devices)])
    present = len(np.unique(labels))
    classes = min(classes, present)
    parts = partition(labels, devices, f"pathological:{classes}", seed, min_size=1)
    table = counts(labels, parts)[:, np.bincount(labels) > 0]
    assert ((table > 0).sum(1) == classes).all()
    holders = (table > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for column in table.T:
        held = column[column > 0]
        assert held.size == 0 or held.max() - held.min() <= 1
    everything = sorted(np.concatenate(parts).tolist())
    assert len(set(everything)) == len(everything)
    assert (len(everything) == len(labels)) == (devices * classes >= present)


def test_a_class_with_fewer_samples_than_holders() -> None:
    """Three samples of class 1 for five holders: three get one each, two get none, none is lost."""
    labels = np.repeat([0, 1], [100, 3])
    table = counts(labels, partition(labels, 5, "pathological:2", seed=0))
    assert sorted(table[:, 1]) == [0, 0, 1, 1, 1]
    assert table[:, 0].tolist() == [20] * 5


def test_incomplete_draws_the_number_of_classes() -> None:
    """100 devices use the whole range, 2 to all ten, or the range that is given."""
    for spec, low, high in (("incomplete", 2, 10), ("incomplete:3-5", 3, 5)):
        held = (counts(TEN, partition(TEN, 100, spec, seed=0)) > 0).sum(1)
        assert set(held) == set(range(low, high + 1))


@pytest.mark.parametrize("spec", COMPLETE)
def test_same_seed_same_parts(spec: str) -> None:
    first, second, other = (partition(TEN, 20, spec, seed) for seed in (7, 7, 8))
    assert all(map(np.array_equal, first, second))
    assert not all(map(np.array_equal, first, other))


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        ("dirichlet:0.1", "698792f9b65d353c"),
        ("pathological:2", "b9d9d89c38e7fc6c"),
        ("incomplete", "677096a4c68f2d92"),
        ("uniform", "2dfafc58fabc19ed"),
    ],
)
def test_parts_are_the_same_on_every_machine(spec: str, digest: str) -> None:
    """Devices that split one set each for themselves rely on this, whatever their numpy."""
    parts = partition(np.arange(2000) % 10, 8, spec, seed=5)
    owner = np.empty(2000, np.uint8)
    for device, part in enumerate(parts):
        owner[part] = device
    assert hashlib.sha256(owner.tobytes()).hexdigest()[:16] == digest


def test_a_smaller_alpha_is_more_skewed() -> None:
    """Total variation from the global labels: Dirichlet 0.1 > 1 > 100, which is nearly uniform."""
    for seed in range(5):
        skews = [
            skew(TEN, partition(TEN, 20, spec, seed))
            for spec in ("dirichlet:0.1", "dirichlet:1", "dirichlet:100", "uniform")
        ]
        assert skews[0] > 0.6
        assert skews[0] > skews[1] + 0.15
        assert skews[1] > skews[2] + 0.15
        assert skews[2] < 0.15
        assert skews[3] < 0.1


def test_dirichlet_shares_have_the_moments_of_dirichlet() -> None:
    """For the first class nobody is full yet: mean 1/K and variance (K-1)/(K²(KA+1))."""
    labels = np.repeat([0, 1], [1000, 9000])
    shares = np.array(
        [
            counts(labels, partition(labels, 5, "dirichlet:0.5", seed, min_size=0))[:, 0] / 1000
            for seed in range(400)
        ]
    )
    np.testing.assert_allclose(shares.mean(0), 0.2, atol=0.04)
    np.testing.assert_allclose(shares.var(0).mean(), 4 / (25 * 3.5), rtol=0.1)


def test_an_extreme_alpha_is_repaired() -> None:
    """1e-9 gives each class to one device; the other ten are filled up to the minimum."""
    sizes = sorted(map(len, partition(TEN, 20, "dirichlet:1e-9", seed=0)))
    assert sizes[:10] == [10] * 10
    assert sum(sizes) == len(TEN)


def test_repair_takes_from_the_largest_class_of_the_largest_device() -> None:
    """Device 0 has classes 0, 1, 1, 1, device 1 has 2, 2, device 2 nothing: two 1s move over."""
    labels = np.array([0, 1, 1, 1, 2, 2])
    owner = np.array([0, 0, 0, 0, 1, 1])
    _repair(owner, labels, devices=3, min_size=2)
    assert owner.tolist() == [0, 2, 2, 0, 1, 1]


def test_uniform_is_even() -> None:
    assert {len(part) for part in partition(TEN, 7, "uniform", seed=0)} == {857, 858}


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "dirichlet",
        "dirichlet:",
        "dirichlet:0",
        "dirichlet:-1",
        "dirichlet:nan",
        "dirichlet:inf",
        "dirichlet:x",
        "pathological",
        "pathological:2-3",
        "pathological:two",
        "incomplete:3",
        "incomplete:a-b",
        "uniform:2",
        "Dirichlet:0.1",
        "random",
    ],
)
def test_a_bad_spec_names_what_is_allowed(spec: str) -> None:
    with pytest.raises(
        ConfigError, match=r"allowed are 'dirichlet:A'.*'pathological:K'.*'uniform'"
    ):
        partition(TEN, 5, spec, seed=0)


@pytest.mark.parametrize(
    "spec", ["pathological:0", "pathological:11", "incomplete:5-2", "incomplete:0-3"]
)
def test_a_number_of_classes_that_the_data_lacks(spec: str) -> None:
    with pytest.raises(ConfigError, match=f"'{spec}'.*1 to 10 classes"):
        partition(TEN, 5, spec, seed=0)


def test_other_mistakes() -> None:
    with pytest.raises(ConfigError, match="6000 samples are too few for 601 devices with 10 each"):
        partition(TEN, 601, "uniform", seed=0)
    with pytest.raises(ConfigError, match="devices >= 1"):
        partition(TEN, 0, "uniform", seed=0)
    with pytest.raises(ConfigError, match="seed >= 0"):
        partition(TEN, 2, "uniform", seed=-1)
    with pytest.raises(ConfigError, match="class numbers, got float64"):
        partition(TEN / 2, 2, "uniform", seed=0)
    with pytest.raises(ConfigError, match="leaves a device with 3 samples instead of 10"):
        partition(np.repeat([0, 1], [3, 500]), 2, "pathological:1", seed=0)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    labels=labels_of,
    share=st.floats(0, 0.99),
    seed=st.integers(0, 2**32),
    kept=st.floats(0.02, 1),
)
def test_a_tested_class_has_been_trained(
    labels: np.ndarray, share: float, seed: int, kept: float
) -> None:
    """Train and test are the device's samples, apart; test classes are among training classes.

    The test part has the rounded share, at least one, or less only when no class can give more.
    """
    mine = np.flatnonzero(np.random.default_rng(seed).random(len(labels)) < kept)
    train, test = local_split(labels, mine, share, seed)
    assert sorted([*train, *test]) == mine.tolist()
    assert set(labels[test]) <= set(labels[train])
    spare = len(mine) - len(np.unique(labels[mine]))
    wanted = max(round(share * len(mine)), 1) if share > 0 else 0
    assert len(test) == min(wanted, spare)


def test_the_share_is_the_same_for_every_class() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    train, test = local_split(labels, np.arange(160), 0.2, seed=0)
    assert np.bincount(labels[test]).tolist() == [20, 10, 2]
    assert np.bincount(labels[train]).tolist() == [80, 40, 8]


def test_small_classes_by_hand() -> None:
    """Sizes 1, 2, 3 at one half: three are wanted; quotas .5, 1, 1.5 give 0, 1, 2."""
    labels = np.array([0, 1, 1, 2, 2, 2])
    _, test = local_split(labels, np.arange(6), 0.5, seed=0)
    assert np.bincount(labels[test], minlength=3).tolist() == [0, 1, 2]


def test_local_split_is_deterministic_and_random() -> None:
    """The order of the indices does not matter, the seed does; every sample can be tested."""
    mine = np.arange(0, 6000, 3)
    first = local_split(TEN, mine, 0.2, seed=1)
    again = local_split(TEN, mine[::-1], 0.2, seed=1)
    other = local_split(TEN, mine, 0.2, seed=2)
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[1], other[1])
    tested = [set(local_split(TEN, mine[:20], 0.4, seed)[1]) for seed in range(200)]
    multiple = [i for i in mine[:20] if (TEN[mine[:20]] == TEN[i]).sum() > 1]
    assert set.union(*tested) == set(multiple)


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0, float("nan")])
def test_a_share_outside_its_range(share: float) -> None:
    with pytest.raises(ConfigError, match="test_share must be from 0"):
        local_split(TEN, np.arange(10), share, seed=0)


def test_an_empty_device_has_nothing_to_split() -> None:
    train, test = local_split(TEN, np.array([], np.int64), 0.2, seed=0)
    assert len(train) == len(test) == 0
