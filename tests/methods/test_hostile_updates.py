"""Rounds of every method's coordinator half with updates and reports that a hostile device sends.

A report is refused, or its update merged into finite numbers, or the merge is refused with a
sentence. Whatever came before, a round of honest devices goes through. Nothing is trained here.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fededge.errors import MethodError, WireError
from fededge.federated.aggregation import aggregate
from fededge.flat import Entry, Layout, Vector, finite
from fededge.method.base import State
from fededge.methods import METHODS, Hyper, Stack, method

LAYOUT = Layout((Entry("weight", (3,), 0, True), Entry("running_var", (1,), 3, False)))
START = np.array([0.5, -0.25, 2.0, 1.0], np.float32)
DEVICES = 6
COMPOSED = [
    "fedavgm(beta=0.99)",
    "fedavgm(damped=true)",
    "fednova(gmf=0.9)",
    "fednova(tau_eff=steps, gmf=0.5)",
    "scaffold(c_scale=sampled)",
    "scaffold(server_lr=10)",
    "fedadagrad(eta=10)",
    "fedadam(b1=0, b2=0.999, eta=1)",
    "fedyogi(b1=0.5, b2=0.5)",
    "fedacd(agg=examples)+fedavgm",
    "fedacd+scaffold",
    "fedacd+mixup+fedadam",
    "fedprox(mu=1)+fednova(mu=1)",
    "fedprox+scaffold+map",
    "fedphp(agg=n)+fedadagrad",
    "fedrs+fedyogi",
    "scaffold+finetune(epochs=3)",
    "fednova+finetune(epochs=3)",
    "ditto+fedavgm+balanced",
    "moon+fedala+scaffold",
]
every_stack = pytest.mark.parametrize("text", [*METHODS, *COMPOSED])

HYPERS = [
    Hyper(),
    Hyper(epochs=3, batch_size=1, lr=0.1, momentum=0.0),
    Hyper(epochs=10_000, batch_size=1_000_000, lr=1e6, momentum=0.999),
    Hyper(epochs=1, batch_size=7, lr=1e-30, momentum=0.5),
]
LARGEST = 3.4028234663852886e38

ordinary = st.floats(-2, 2, width=32)
values = ordinary | st.sampled_from(
    [0.0, 1e-45, -1e-45, 1e-38, 65504.0, -65504.0, 1e9, -1e14, 1e15, 1e18, -1e18, 1e19]
    + [sign * size for sign in (1, -1) for size in (1e30, 1e38, 2e38, LARGEST)]
)
vectors = st.lists(values, min_size=4, max_size=4).map(lambda v: np.array(v, np.float32))
wild = st.sampled_from(
    [
        *(0.0, -0.0, 5e-324, 0.5, 1.0, -1.0, 2.0**53, 2.0**53 + 2, 1e300, -1e300, 1.79e308),
        *(math.nan, math.inf, -math.inf),
    ]
)


@dataclasses.dataclass
class Federation:
    """A coordinator's side of a run: what it asks for, and where it stands."""

    stack: Stack
    hyper: Hyper
    w: Vector
    state: State

    def merged(
        self, reports: Mapping[str, Mapping[str, float]], models: Mapping[str, Vector]
    ) -> tuple[Vector, State]:
        """The next model and state, which are checked, as is that nothing else has changed."""
        given = copy.deepcopy((self.w, dict(self.state), dict(reports), dict(models)))
        try:
            w, state = aggregate(
                self.stack, self.w, self.state, reports, models.__getitem__, DEVICES, LAYOUT
            )
        finally:
            np.testing.assert_equal((self.w, self.state, reports, models), given)
        for vector in (w, *state.values()):
            assert vector.dtype == np.float32
            assert vector.shape == (LAYOUT.size,)
            assert finite(vector)
        assert state.keys() == self.state.keys()
        assert self.stack.send(state).keys() == set(self.stack.sends)
        return w, state


def report(federation: Federation, draw: st.DrawFn) -> dict[str, float]:
    """Numbers within their ranges: ends, or in between."""
    stack, hyper = federation.stack, federation.hyper
    examples = draw(st.sampled_from([0, 1, 7, 1000, 2**53]))
    most = int(stack.ranges(hyper, examples, 0)["steps"].high)
    steps = draw(st.sampled_from([0, most // 2, most]))
    ranges = stack.ranges(hyper, examples, steps)
    share = draw(st.sampled_from([0.0, 0.25, 1.0]))
    inside = {n: (1 - share) * r.low + share * r.high for n, r in sorted(ranges.items())}
    return {**inside, "examples": float(examples), "steps": float(steps)}


def spoiled(honest: dict[str, float], draw: st.DrawFn) -> dict[str, float]:
    """The scalars with one changed, removed or added."""
    name = draw(st.sampled_from([*sorted(honest), "spy"]))
    value = draw(st.none() | wild)
    rest = {key: number for key, number in honest.items() if key != name}
    return rest if value is None else {**rest, name: value}


def accepted(federation: Federation, report: dict[str, float]) -> bool:
    try:
        federation.stack.check(report, federation.hyper)
    except WireError as error:
        assert_sentence(error)
        return False
    return True


def assert_sentence(error: Exception) -> None:
    """One line that fits into a reply, with a word on what is wrong."""
    text = str(error)
    assert 15 < len(text) < 300
    assert "\n" not in text


@st.composite
def rounds(draw: st.DrawFn, text: str) -> Federation:
    """A federation after some rounds, of which a device or all were hostile."""
    stack = method(text)
    hyper = draw(st.sampled_from(HYPERS))
    federation = Federation(stack, hyper, START, stack.initial(LAYOUT))
    for _ in range(draw(st.integers(1, 3))):
        hostile_round(federation, draw)
    return federation


def hostile_round(federation: Federation, draw: st.DrawFn) -> None:
    devices = [f"d{i}" for i in range(draw(st.integers(2, 5)))]
    reports = {device: report(federation, draw) for device in devices}
    if draw(st.booleans()):
        victim = draw(st.sampled_from(devices))
        reports[victim] = spoiled(reports[victim], draw)
    reports = {device: found for device, found in reports.items() if accepted(federation, found)}
    models = {device: draw(vectors) for device in reports}
    try:
        federation.w, federation.state = federation.merged(reports, models)
    except MethodError as error:
        assert_sentence(error)


def honest_round(federation: Federation) -> None:
    """Three devices that move by what their steps and the learning rate allow."""
    stack, hyper = federation.stack, federation.hyper
    reports, models = {}, {}
    for number in range(3):
        examples = 20 + number
        steps = int(stack.ranges(hyper, examples, 0)["steps"].high)
        ranges = stack.ranges(hyper, examples, steps)
        own = {name: ranges[name].high for name in stack.scalars}
        own |= {"examples": float(examples), "steps": float(steps), "loss": 1.0}
        stack.check(own, hyper)
        gradient = np.array([0.1, -0.2, 0.01 * number, 0.0], np.float32)
        device = f"d{number}"
        reports[device] = own
        models[device] = federation.w - min(1.0, hyper.lr * steps) * gradient
    federation.w, federation.state = federation.merged(reports, models)


@every_stack
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_round_breaks_the_next_one(text: str, data: st.DataObject) -> None:
    federation = data.draw(rounds(text))
    for _ in range(3):
        honest_round(federation)


# Attacks by name

ONE = {"examples": 64.0, "steps": 1.0, "loss": 1.0, "personal_accuracy": 0.5}
OWN = {"fednova": {"a_k": 1.0}, "scaffold": {"slope": 100.0}}


def attacked(text: str, *numbers: float) -> Federation:
    """After rounds in which one of two devices sent a model of this number."""
    stack = method(text)
    federation = Federation(stack, Hyper(), START, stack.initial(LAYOUT))
    report = {**ONE, **OWN.get(text.partition("(")[0], {})}
    reports = {"good": report, "bad": report}
    for number in numbers:
        stack.check(report, federation.hyper)
        models = {"good": federation.w, "bad": np.full(4, number, np.float32)}
        federation.w, federation.state = federation.merged(reports, models)
    return federation


@pytest.mark.parametrize("number", [1e19, 1e30, 1e38, LARGEST, -LARGEST])
@pytest.mark.parametrize(
    "text", ["fedavg", "fedavgm", "fedadam", "fedadagrad", "fedyogi", "fednova", "scaffold"]
)
def test_a_huge_number_is_a_refused_merge_in_its_own_round(text: str, number: float) -> None:
    """Before it is in the momentum, where it would break the rounds of others."""
    with pytest.raises(MethodError, match=rf"^{text}.*( at most 1e\+\d+ is allowed|not finite)"):
        attacked(text, number)


@pytest.mark.parametrize("text", ["fedavgm(beta=0.99)", "fednova(gmf=0.99)", "scaffold"])
def test_momentum_of_the_largest_step_stops_no_later_round(text: str) -> None:
    federation = attacked(text, 1.9e15)
    for _ in range(200):
        honest_round(federation)
    assert np.abs(federation.w).max() < 1e18


def test_a_slope_that_blows_up_a_tiny_change_is_refused() -> None:
    report = {**ONE, "slope": 1e300}
    with pytest.raises(
        WireError, match=r"^the report's slope must be between 0 and 100\.0, got 1e"
    ):
        method("scaffold").check(report, Hyper())


def test_steps_that_no_device_takes_do_not_raise_a_k() -> None:
    for steps, a_k, sentence in (
        (2.0**53, 1e30, "steps must be a whole number between 0 and 1, got 9"),
        (1.0, 1.5, r"a_k must be between 1 and 1\.0, got 1\.5"),
    ):
        with pytest.raises(WireError, match=f"^the report's {sentence}"):
            method("fednova").check({**ONE, "steps": steps, "a_k": a_k}, Hyper())
