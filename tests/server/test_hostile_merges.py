"""An accepted update may hold anything: a merge gives a finite model and names nobody honest."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fededge import methods
from fededge.config import RobustConfig, RoundsConfig
from fededge.flat import Layout, Vector
from fededge.wire import tensors
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Manifest, Report
from fededge_server.model.merging import Current, MergeResult, Merging
from fededge_server.store import Store

LAYOUT = Layout.of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
VERSION = "000004-0123456789abcdef"
COMBINE = ["mean", "median", "trimmed-mean", "krum"]
METHODS = [
    *("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fednova", "fednova(gmf=0.9)"),
    *("scaffold", "fedacd", "fedacd+scaffold", "fedprox+fedadam"),
]
EXTREME = [0.0, 1e-45, 1.0, -1.0, 65504.0, 1e30, 3.4028235e38, -3.4028235e38]


class Updates(Merging):
    """The updates are at hand, and not in files."""

    vectors: dict[str, Vector]

    def _update(self, device: str, report: Report, current: Current) -> Any:
        return tensors.LazyVector((LAYOUT.size,), lambda span: self.vectors[device][span])


def merge(
    name: str, combine: str, vectors: dict[str, Vector], scalars: dict[str, dict[str, float]]
) -> MergeResult:
    method = methods.method(name)
    robust = RobustConfig(combine=combine, byzantine=0)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.spool.mkdir()
        merging = Updates(
            store, LAYOUT, method, Encoding(), RoundsConfig(), robust, methods.Hyper(lr=0.1)
        )
        object.__setattr__(merging, "vectors", vectors)
        manifest = Manifest(1, 1024, 10, "0" * 64)
        reports = {
            d: Report(d, "run", VERSION, LAYOUT.hash, manifest, values)
            for d, values in scalars.items()
        }
        start = np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)
        current = Current(4, VERSION, start, method.initial(LAYOUT))
        with np.errstate(all="ignore"):
            norms = {d: float(np.linalg.norm(vectors[d] - start)) for d in vectors}
        return merging.merge(reports, norms, 9, current)


def honest(index: int) -> tuple[Vector, dict[str, float]]:
    drawn = np.random.default_rng(index)
    model = np.linspace(-1, 1, LAYOUT.size) + 0.1 * drawn.normal(size=LAYOUT.size)
    scalars = {"examples": 10.0 + index, "steps": 3.0, "loss": 0.5}
    return model.astype(np.float32), {**scalars, "slope": 2.0, "a_k": 3.0, "v_m": 0.7}


HOSTILE = st.fixed_dictionaries(
    {
        "values": st.lists(st.sampled_from(EXTREME), min_size=1, max_size=6),
        "examples": st.sampled_from([1.0, 1e15, 2.0**53]),
        "steps": st.sampled_from([1.0, 1e6, 2.0**53]),
        "loss": st.sampled_from([0.0, 1e300]),
        "slope": st.sampled_from([0.0, 1.0, 1e300, 1e308]),
        "a_k": st.sampled_from([0.0, 1.0, 1e300]),
        "v_m": st.sampled_from([0.5, 1.0, 0.0, 1e300, -1.0]),
    }
)


@pytest.mark.parametrize("combine", COMBINE)
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=HOSTILE, others=st.integers(3, 5))
def test_the_others_are_merged_and_nobody_else_is_named(
    name: str, combine: str, drawn: dict[str, Any], others: int
) -> None:
    """Though no bound was asked before: a report may say what it likes here."""
    if combine in ("median", "trimmed-mean") and methods.method(name).overriding["sums"]:
        return  # refused when the configuration is read
    values = np.resize(np.array(drawn["values"], np.float32), LAYOUT.size)
    vectors, scalars = {"hostile": values}, {"hostile": {**drawn}}
    del scalars["hostile"]["values"]
    for index in range(others):
        vectors[f"box-{index}"], scalars[f"box-{index}"] = honest(index)
    outcome = merge(name, combine, vectors, scalars)
    assert outcome.problem == ""
    assert np.isfinite(outcome.model).all()
    assert np.abs(outcome.model).max() <= 65504.0
    assert all(np.isfinite(vector).all() for vector in outcome.state.values())
    assert {*outcome.refused} <= {"hostile"}
    assert {*vectors} - {"hostile"} <= {*outcome.merged}


@pytest.mark.parametrize("broken", [ZeroDivisionError, ValueError, KeyError, TypeError])
def test_a_method_of_ones_own_that_raises_leaves_the_model_as_it_is(
    broken: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> Any:
        raise broken("mine")

    monkeypatch.setattr("fededge.methods.fedavg.FedAvg.step", step)
    both = {f"box-{index}": honest(index) for index in range(3)}
    vectors = {device: model for device, (model, _) in both.items()}
    outcome = merge("fedavg", "mean", vectors, {d: facts for d, (_, facts) in both.items()})
    assert np.array_equal(outcome.model, np.linspace(-1, 1, LAYOUT.size, dtype=np.float32))
    assert (outcome.merged, dict(outcome.refused)) == ((), {})
    assert "mine" in outcome.problem


def test_one_of_four_that_claims_everything_has_half_of_the_say() -> None:
    both = {f"box-{index}": honest(index) for index in range(4)}
    vectors = {device: model for device, (model, _) in both.items()}
    scalars = {device: dict(facts) for device, (_, facts) in both.items()}
    scalars["box-0"]["examples"] = 1e15
    found = merge("fedavg", "mean", vectors, scalars).model.astype(np.float64)
    weights = {d: scalars[d]["examples"] for d in ("box-1", "box-2", "box-3")}
    others = sum(w * vectors[d].astype(np.float64) for d, w in weights.items())
    expected = 0.5 * vectors["box-0"] + 0.5 * others / sum(weights.values())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_version_whose_vectors_no_device_could_read_does_not_come_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vectors that a method sends are computed from its state after the step."""
    monkeypatch.setattr("fededge.methods.scaffold.Scaffold.send", _overflowing)
    both = {f"box-{index}": honest(index) for index in range(3)}
    vectors = {device: model for device, (model, _) in both.items()}
    outcome = merge("scaffold", "mean", vectors, {d: facts for d, (_, facts) in both.items()})
    assert "'scaffold.c' has numbers that are not finite and cannot be sent" in outcome.problem


def _overflowing(self: object, state: Any) -> Any:
    with np.errstate(all="ignore"):
        return {"c": state["c"] * np.float32(3e38) * np.float32(3e38)}


@pytest.mark.parametrize("method", ["fednova", "fednova(tau_eff=steps)", "fednova(gmf=0.9)"])
def test_a_device_that_claims_everything_does_not_lengthen_the_step_of_the_others(
    method: str,
) -> None:
    """FedNova's step is a mean of a_k, which may be large where there are many examples."""
    both = {f"box-{index}": honest(index) for index in range(3)}
    vectors = {device: model for device, (model, _) in both.items()}
    scalars = {device: facts for device, (_, facts) in both.items()}
    start = np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)
    usual = np.linalg.norm(merge(method, "mean", vectors, scalars).model - start)
    vectors["hostile"] = start + np.float32(1e-6)
    claimed = {"examples": 1e6, "steps": 15625.0, "a_k": 156250.0, "loss": 1.0}
    outcome = merge(method, "mean", vectors, {**scalars, "hostile": claimed})
    assert np.linalg.norm(outcome.model - start) < 10 * usual
