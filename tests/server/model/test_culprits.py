"""A merge that fails is tried without those that stand out, and says who it cannot take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fededge.errors import DiskFullError, MethodError, StoreError
from fededge_server.model.culprits import sift

DEVICES = [f"d{index}" for index in range(9)]


def without(*culprits: str) -> Callable[[Sequence[str]], list[str]]:
    """A merge that cannot take these devices."""

    def merge(devices: Sequence[str]) -> list[str]:
        for device in devices:
            if device in culprits:
                raise MethodError(f"{device} breaks the merge")
        return sorted(devices)

    return merge


def test_nobody_is_named_if_all_can_be_merged() -> None:
    sifted = sift(DEVICES, without())
    assert (sifted.result, sifted.culprits, sifted.reason) == (DEVICES, (), "")


@given(st.sets(st.sampled_from(DEVICES[:4]), min_size=1, max_size=4))
def test_culprits_are_named_and_nobody_else_if_they_stand_out(culprits: set[str]) -> None:
    sifted = sift(DEVICES, without(*culprits))
    assert set(sifted.culprits) == culprits
    assert sifted.result == sorted({*DEVICES} - culprits)
    assert "breaks the merge" in sifted.reason


@pytest.mark.parametrize("culprit", DEVICES)
def test_one_culprit_is_found_wherever_it_stands(culprit: str) -> None:
    assert sift(DEVICES, without(culprit)).culprits == (culprit,)


def test_a_method_that_takes_nothing_is_no_device_s_fault() -> None:
    sifted = sift(DEVICES, without(*DEVICES))
    assert (sifted.result, sifted.culprits) == (None, ())
    assert sifted.reason == "d0 breaks the merge"


def test_a_single_update_that_cannot_be_merged_names_nobody() -> None:
    sifted = sift(["a"], without("a"))
    assert (sifted.result, sifted.culprits) == (None, ())


def test_whatever_a_merge_raises_is_named() -> None:
    def merge(devices: Sequence[str]) -> int:
        return 1 if "a" not in devices else 1 // 0

    sifted = sift(["b", "a", "c"], merge)
    assert sifted.culprits == ("a",)
    assert "ZeroDivisionError" in sifted.reason


@pytest.mark.parametrize("error", [DiskFullError("full"), StoreError("damaged"), MemoryError()])
def test_an_error_of_our_own_is_blamed_on_no_device(error: Exception) -> None:
    def merge(devices: Sequence[str]) -> int:
        raise error

    with pytest.raises(type(error)):
        sift(DEVICES, merge)
