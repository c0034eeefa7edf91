"""The mean of a round against a float64 computation, in any order, one update at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fededge._internal.compiled import Choice
from fededge.errors import LayoutError, MethodError
from fededge.federated import sums
from fededge.federated.aggregation import BLOCK, aggregate
from fededge.flat import Layout, Vector, as_numpy
from fededge.method.base import State
from fededge.methods import Merged, Method, Stack, method

FEDAVG = method("fedavg")


def array(*numbers: float) -> Vector:
    return np.array(numbers, np.float32)


def zeros(size: int) -> Vector:
    return np.zeros(size, np.float32)


def ones(size: int) -> Vector:
    return np.ones(size, np.float32)


def drawn(size: int, seed: int = 0) -> Vector:
    return as_numpy(torch.randn(size, generator=torch.Generator().manual_seed(seed)))


def plain(size: int) -> Layout:
    """One parameter of this many numbers."""
    return Layout.of(nn.ParameterList([torch.zeros(size)]))


def report(examples: float, **more: float) -> dict[str, float]:
    return {"examples": examples, "steps": 1.0, "loss": 1.0, **more}


def updates(count: int, size: int = 7) -> dict[str, Vector]:
    draw = torch.Generator().manual_seed(count)
    return {f"d{i:02d}": as_numpy(torch.randn(size, generator=draw)) for i in range(count)}


def test_the_mean_by_hand() -> None:
    """Weights 1 and 3: (1 · (0, 4) + 3 · (8, 0)) / 4 = (6, 1)."""
    models = {"a": array(0.0, 4.0), "b": array(8.0, 0.0)}
    reports = {"a": report(1), "b": report(3)}
    model, state = aggregate(
        FEDAVG, zeros(2), {}, reports, models.__getitem__, devices=2, layout=plain(2)
    )
    assert model.tolist() == [6.0, 1.0]
    assert (model.dtype, state) == (np.dtype(np.float32), {})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9).filter(any))
def test_it_is_the_float64_mean_rounded_once(examples: list[int]) -> None:
    models = updates(len(examples))
    reports = {d: report(n) for d, n in zip(models, examples, strict=True)}
    model, _ = aggregate(
        FEDAVG, zeros(7), {}, reports, models.__getitem__, devices=9, layout=plain(7)
    )
    total = sum(examples)
    expected = np.zeros(7)
    for n, update in zip(examples, models.values(), strict=True):
        expected += n / total * update.astype(np.float64)
    assert np.array_equal(model, expected.astype(np.float32))


def test_a_model_of_many_blocks_is_summed_as_one() -> None:
    """Two blocks and three numbers: each against float64, and the further sums as well."""
    size = 2 * BLOCK + 3
    models, w = updates(3, size), drawn(size, 9)
    reports = {d: report(n + 1, drift=0.5) for n, d in enumerate(models)}
    seen: dict[str, Vector] = {}

    class Watching(Control):
        def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
            seen.update(merged.sums)
            return merged.mean, {}

    model, _ = aggregate(
        Stack((Watching(),)), w, {}, reports, models.__getitem__, devices=3, layout=plain(size)
    )
    mean, change = np.zeros(size), np.zeros(size)
    for n, update in enumerate(models.values()):
        mean += (n + 1) / 6 * update.astype(np.float64)
        change += -0.5 * update.astype(np.float64)
        change -= -0.5 * w.astype(np.float64)
    assert np.array_equal(model, mean.astype(np.float32))
    assert np.array_equal(seen["c"], change.astype(np.float32))


@given(st.permutations(sorted(updates(6))))
def test_the_order_of_arrival_does_not_matter(order: list[str]) -> None:
    models = updates(6)
    ordered = {device: report(3 + int(device[1:])) for device in order}
    kept = dict(sorted(ordered.items()))
    results = [
        aggregate(FEDAVG, zeros(7), {}, reports, models.__getitem__, devices=6, layout=plain(7))[0]
        for reports in (ordered, kept)
    ]
    assert np.array_equal(results[0], results[1])


def test_the_sum_keeps_small_differences_between_updates() -> None:
    """A thousand equal updates give their value back; a float32 sum would be off by then."""
    value = array(0.1, 1e-8, 3e7)
    reports = {f"d{i:04d}": report(1) for i in range(1000)}
    model, _ = aggregate(
        FEDAVG, zeros(3), {}, reports, lambda _: value, devices=1000, layout=plain(3)
    )
    assert np.array_equal(model, value)


def test_one_update_is_held_at_a_time() -> None:
    """Each is read once, in the order of ids, and freed before the next one."""
    alive: list[weakref.ref[Vector]] = []
    asked: list[str] = []

    def update(device: str) -> Vector:
        gc.collect()
        assert all(ref() is None for ref in alive[:-1])
        asked.append(device)
        model = ones(1000)
        alive.append(weakref.ref(model))
        return model

    reports = {f"d{i}": report(1) for i in (3, 1, 2, 0)}
    aggregate(FEDAVG, zeros(1000), {}, reports, update, devices=4, layout=plain(1000))
    assert asked == ["d0", "d1", "d2", "d3"]


@pytest.mark.parametrize("reports", [{}, {"a": report(0)}, {"a": report(0), "b": report(0)}])
def test_without_weight_the_model_and_the_memory_stay(
    reports: Mapping[str, Mapping[str, float]],
) -> None:
    w, state = drawn(3), {"m": ones(3)}

    def never(device: str) -> Vector:
        raise AssertionError("an update that counts nothing is not asked for")

    model, after = aggregate(FEDAVG, w, state, reports, never, devices=3, layout=plain(3))
    assert model is w
    assert after is state


def test_the_arguments_are_not_changed() -> None:
    models, w = updates(3), drawn(7)
    before = {d: m.copy() for d, m in models.items()}
    w_before = w.copy()
    reports = {d: report(2) for d in models}
    aggregate(FEDAVG, w, {}, reports, models.__getitem__, devices=3, layout=plain(7))
    assert np.array_equal(w, w_before)
    assert all(np.array_equal(models[d], m) for d, m in before.items())


@pytest.mark.parametrize("length", [2, 4])
def test_an_update_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(LayoutError, match=f"update of 'a' has {length} elements, expected 3"):
        aggregate(
            FEDAVG,
            zeros(3),
            {},
            {"a": report(1)},
            lambda _: ones(length),
            devices=1,
            layout=plain(3),
        )


@dataclass(frozen=True)
class Control(Method):
    """As SCAFFOLD: c ← c + 1/N Σ ((w - w_k)/(K η) - c), from what the devices send anyway."""

    name: ClassVar[str] = "control"
    scalars: ClassVar[frozenset[str]] = frozenset({"drift"})
    rate: float = 0.5

    def initial(self, layout: Layout) -> State:
        return {"c": zeros(layout.size)}

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        return {"c": -scalars["drift"], "all": 1.0}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        assert np.allclose(merged.sums["all"] / len(merged.scalars) + w, merged.mean, atol=1e-6)
        share = len(merged.scalars) / merged.devices
        c = state["c"] + merged.sums["c"] / merged.devices - share * state["c"]
        return w + self.rate * (merged.mean - w), {"c": c}


def test_further_sums_of_the_changes_have_their_own_factors() -> None:
    """Two of five devices took 2 and 5 steps at lr 0.1: factors 1/(0.2) and 1/(0.5)."""
    models, w, c = updates(2), drawn(7, 1), drawn(7, 2)
    reports = {"d00": report(9, drift=5.0), "d01": report(9, drift=2.0), "none": report(0, drift=8)}
    state = {"control.c": c, "other.m": ones(1)}
    stack = Stack((Control(),))
    model, after = aggregate(
        stack, w, state, reports, models.__getitem__, devices=5, layout=plain(7)
    )
    one, two, w64, c64 = (t.astype(np.float64) for t in (models["d00"], models["d01"], w, c))
    changes = ((w64 - one) / 0.2 - c64) + ((w64 - two) / 0.5 - c64)
    assert np.allclose(after["control.c"], c64 + changes / 5, atol=1e-6)
    assert np.allclose(model, w64 + 0.5 * ((one + two) / 2 - w64), atol=1e-6)
    assert np.array_equal(state["control.c"], c)
    assert np.array_equal(after["other.m"], ones(1))


def test_running_statistics_are_averaged_whatever_the_step() -> None:
    layout = Layout.of(nn.BatchNorm1d(2))
    stack, w = Stack((Control(rate=0.0),)), zeros(8)
    update = ones(8)
    model, _ = aggregate(
        stack,
        w,
        stack.initial(layout),
        {"a": report(1, drift=1.0)},
        lambda _: update,
        devices=1,
        layout=layout,
    )
    assert model.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (lambda self, w, m, s: (w / 0, s), "global model"),
        (lambda self, w, m, s: (w, {"v": w / 0}), "wild.v"),
    ],
)
def test_a_step_with_numbers_that_are_not_finite_is_one_sentence(step: object, what: str) -> None:
    kind: type[Method] = type("Wild", (Method,), {"name": "wild", "step": step})
    with pytest.raises(MethodError, match=f"^wild: the next {what} has numbers that are not"):
        aggregate(
            Stack((kind(),)),
            ones(2),
            {},
            {"a": report(1)},
            lambda _: ones(2),
            devices=1,
            layout=plain(2),
        )


@pytest.mark.parametrize("weight", [3.0, 1 / 3])
def test_updates_whose_mean_overflows_float32_are_one_sentence(weight: float) -> None:
    """Each is finite, and so is their mean in float64; a factor of a method's own may lead out."""

    class Steep(Control):
        def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
            return {"c": 1e39 * weight}

        def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
            return merged.sums["c"], {}

    reports = {device: report(1, drift=1.0) for device in "ab"}
    with pytest.raises(MethodError, match="the next global model has numbers that are not finite"):
        aggregate(
            Stack((Steep(),)),
            zeros(3),
            {},
            reports,
            lambda _: ones(3),
            devices=2,
            layout=plain(3),
        )


def test_a_mean_that_came_from_another_process_is_not_copied() -> None:
    """Numpy has another object for the same kind of number there; a model is large."""
    mean = np.ones(7, np.dtype(np.float32, copy=True))  # as pickle makes it
    model, _ = aggregate(
        FEDAVG, zeros(7), {}, {"a": report(1)}, lambda _: ones(7), 1, plain(7), mean=mean
    )
    assert np.shares_memory(model, mean)


# Sums, by what they are made: the same model everywhere

COMPILED = sums.CHOICE.build is not None
if TYPE_CHECKING or COMPILED:
    from fededge import _sums


@pytest.fixture(params=["numpy", *(_sums.simd_levels() if COMPILED else ())])
def made_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The numpy fallback, and the compiled module with every instruction set of this processor."""
    if request.param == "numpy":
        monkeypatch.setattr(sums, "CHOICE", Choice("reference", "a test"))
        yield "numpy"
    else:
        before = _sums.simd_level()
        _sums.limit_simd(request.param)
        yield "compiled"
        _sums.limit_simd(before)


WEIGHTS = (1.0, 1 / 3, -0.7, 0.0, 1e-30, 1e30)


@pytest.mark.parametrize("size", [0, 1, 7, 1000, 70_001])
def test_sums_have_the_bits_of_float64(size: int, made_by: str) -> None:
    """Two roundings, one for the product and one for the sum."""
    assert sums.implementation().startswith(made_by)
    start, x = drawn(size, 1).astype(np.float64), drawn(size, 2)
    x[: size // 7] = np.resize(array(-0.0, 1e-45, -3.4028235e38, 65504.0), size // 7)
    for weight in WEIGHTS:
        acc = start.copy()
        before = x.copy()
        sums.accumulate_(acc, x, weight)
        expected = start + np.float64(weight) * x.astype(np.float64)
        assert acc.tobytes() == expected.tobytes()
        assert x.tobytes() == before.tobytes()


def test_a_sum_takes_any_strides(made_by: str) -> None:
    wide, acc = drawn(20).reshape(10, 2), np.zeros(10)
    sums.accumulate_(acc, wide[:, 1], 0.5)
    assert np.array_equal(acc, 0.5 * wide[:, 1].astype(np.float64)), made_by
