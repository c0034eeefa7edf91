"""Shares of a version are measured from the models alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.faults.shares import shares


def test_the_weights_of_a_mean_are_found() -> None:
    draws = np.random.default_rng(0)
    before = draws.normal(size=100).astype(np.float32)
    updates = {d: (before + draws.normal(size=100)).astype(np.float32) for d in "abc"}
    after = (0.7 * updates["a"] + 0.2 * updates["b"] + 0.1 * updates["c"]).astype(np.float32)
    assert shares(before, after, updates) == pytest.approx({"a": 0.7, "b": 0.2, "c": 0.1}, abs=1e-5)


def test_an_update_that_changes_nothing_has_no_share_that_can_be_measured() -> None:
    before = np.ones(10, np.float32)
    after = np.full(10, 1.5, np.float32)
    assert shares(before, after, {"a": before, "b": 2 * before}) == {"b": pytest.approx(0.5)}
    assert shares(before, before, {"a": before}) == {}
