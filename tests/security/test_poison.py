"""Poisoned updates: whatever one device sends, the coordinator lives and names it, and the model is
that of the honest devices.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from fededge.flat import Vector
from tests.security.fleet import HONEST, Fleet, Run
from tests.security.hostile_device import HostileDevice, Update

pytestmark = pytest.mark.slow

LARGEST = 3.4028235e38
UNBOUNDED = {"max_value": LARGEST, "norm_factor": 0.0}
"""So that poison passes the checks of one update, and is left to the merge."""

Poison = Callable[[HostileDevice, Vector], Update]


def everywhere(value: float, **scalars: float) -> Poison:
    return lambda device, model: device.update(np.full_like(model, value), scalars)


def in_one(value: float, **scalars: float) -> Poison:
    def make(device: HostileDevice, model: Vector) -> Update:
        spoilt = model.copy()
        spoilt[0] = value
        return device.update(spoilt, scalars)

    return make


def moved(by: float, **scalars: float) -> Poison:
    """A change of this length in a direction that nobody else takes."""

    def make(device: HostileDevice, model: Vector) -> Update:
        noise = np.random.default_rng(0).normal(size=len(model)).astype(np.float32)
        return device.update(model + noise * np.float32(by / np.linalg.norm(noise)), scalars)

    return make


def attacked(fleet: Fleet, poison: list[Poison], count: int, **sections: Any) -> Run:
    """A run in which one device answers every task with poison, one after the other."""
    with fleet.run({"count": count}, **sections) as run, run.hostile() as rogue:
        doses = cycle(poison)
        rogue.turn = lambda device, model: next(doses)(device, model)
        rogue.announces()
        run.ends()
    assert "Traceback" not in run.log
    return run


def assert_only_the_honest_were_merged(run: Run, fleet: Fleet, method: str) -> None:
    count = len(run.merged())
    assert [sorted(round_) for round_ in run.merged()] == [list(HONEST)] * count
    assert run.hashes == fleet.simulated(count, method)


SCAFFOLD = "scaffold(c_scale=sampled)"
"""So that its sums do not depend on who else is known: a simulation has no rogue."""

CASES = {
    "fedavg": (
        [everywhere(LARGEST), everywhere(65504.0), in_one(1e30)],
        ["robust.max_value is 6.55e+04", "robust.norm_factor", "robust.max_value is 6.55e+04"],
    ),
    "fedavgm": ([everywhere(-LARGEST), in_one(65504.0)], ["max_value", "norm_factor"] * 2),
    SCAFFOLD: (
        [moved(1e-3, slope=1e300), moved(1e-3, slope=-1.0), everywhere(60000.0, slope=25.0)],
        ["slope must be between 0 and", "slope must be between 0 and", "norm_factor"],
    ),
    "fednova": (
        [moved(1e-3, a_k=1e300), moved(1e-3, a_k=0.0), moved(1e-3, a_k=8.0, steps=2.0**53)],
        ["a_k must be between", "a_k must be between", "steps must be a whole number between"],
    ),
}


@pytest.mark.parametrize("method", CASES)
def test_poison_is_refused_and_its_sender_ends_in_quarantine(fleet: Fleet, method: str) -> None:
    """With the bounds that every run has, and after three refusals."""
    poison, reasons = CASES[method]
    run = attacked(fleet, poison, 4, method=method)
    for (device, reason), expected in zip(run.refused(), reasons, strict=False):
        assert device == "rogue"
        assert expected in reason
    assert len(run.refused()) == 3
    assert run.quarantined() == {"rogue"}
    assert_only_the_honest_were_merged(run, fleet, method)


UNCHECKED = {
    "fedadam": ([everywhere(LARGEST)], "the next 'm' would hold the number"),
    SCAFFOLD: ([everywhere(LARGEST, slope=25.0)], "the step would move a number of the model by"),
}


@pytest.mark.parametrize("method", UNCHECKED)
def test_a_merge_names_its_culprit_and_goes_on_with_the_others(fleet: Fleet, method: str) -> None:
    """With all bounds on single updates switched off: it is accepted, and breaks the sum."""
    poison, expected = UNCHECKED[method]
    run = attacked(fleet, poison, 2, method=method, robust=UNBOUNDED)
    ((device, reason),) = run.refused()
    assert device == "rogue"
    assert expected in reason
    assert run.quarantined() == {"rogue"}
    assert_only_the_honest_were_merged(run, fleet, method)


def test_two_updates_have_no_middle_but_the_coordinator_lives(fleet: Fleet) -> None:
    """The median of two is their mean. What it takes in is bounded all the same."""
    run = attacked(fleet, [everywhere(LARGEST)], 3, robust={"combine": "median"})
    assert [sorted(round_) for round_ in run.merged()] == [list(HONEST)] * 3
    assert run.quarantined() == {"rogue"}


def test_momentum_does_not_grow_beyond_what_a_model_may_hold(fleet: Fleet) -> None:
    """FedAvgM adds up what it was sent: without a bound on changes, a few rounds are enough."""
    rounds = {"count": 3, "retries": 0, "quarantine_after": 0}
    robust = {"norm_factor": 0.0}
    with fleet.run(rounds, method="fedavgm", robust=robust) as run, run.hostile() as rogue:
        rogue.turn = everywhere(65000.0)
        rogue.announces()
        run.ends()
        layout = rogue.layout
    for progress in run.history():
        model = run.vector(progress.version, layout)
        assert np.abs(model).max() <= 65504.0
    assert "Traceback" not in run.log


@pytest.mark.parametrize("where", ["step", "weight"])
def test_a_method_of_ones_own_that_one_device_breaks_goes_on_without_it(
    fleet: Fleet, own_methods: list[str], where: str
) -> None:
    method = f"{own_methods[0]}(where={where})"
    run = attacked(fleet, [moved(1e-3, mood=1.0)], 4, method=method)
    devices = {device for device, _ in run.refused()}
    assert devices == {"rogue"} == run.quarantined()
    assert all("KeyError" in reason for _, reason in run.refused())
    assert_only_the_honest_were_merged(run, fleet, method)


def test_a_method_of_ones_own_that_always_fails_leaves_the_model_as_it_is(
    fleet: Fleet, own_methods: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with fleet.run({"count": 3}, method=own_methods[1]) as run, run.hostile() as rogue:
        rogue.turn = moved(1e-3)
        rogue.announces()
        run.ends()
        said = run.status(capsys)["state"]
    assert len({progress.sha256 for progress in run.history()}) == 1
    assert run.merged() == [{}] * 3
    assert (run.refused(), run.quarantined()) == ([], set()), "nobody knows who is to blame"
    assert "round 3 is without effect" in said["problem"]
    assert "this step was never finished" in said["problem"]
