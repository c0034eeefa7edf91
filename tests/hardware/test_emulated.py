"""The choice on a device of torch that is not the CPU: the tests' emulated accelerator."""

from __future__ import annotations

import pytest

from fededge.config import DataConfig, EvaluationHardwareConfig, ModelConfig
from fededge.errors import ConfigError
from fededge.hardware import Precision, examine
from fededge_server.model.network import Network
from tests import accelerator

pytestmark = pytest.mark.accelerator


@pytest.fixture(autouse=True)
def loaded() -> None:
    module = accelerator.load()
    if isinstance(module, str):
        pytest.skip(module)


def test_auto_takes_an_accelerator_that_works() -> None:
    chosen = examine("auto")
    assert chosen.hardware.device == "emulated:0"
    assert chosen.hardware.reason == ("emulated:0 is used: it is the accelerator that torch sees")


def test_an_accelerator_that_fails_a_small_computation_is_not_taken() -> None:
    with accelerator.fail_allocation(1):
        assert examine("auto").hardware.on_cpu
    with (
        accelerator.fail_allocation(1),
        pytest.raises(ConfigError, match="device is 'emulated', but it fails a small computation"),
    ):
        examine("emulated")


def test_a_number_too_high_is_refused() -> None:
    with pytest.raises(ConfigError, match="device is 'emulated:3', but there is one"):
        examine("emulated:3")


@pytest.mark.parametrize("precision", Precision)
def test_every_precision_is_tried(precision: Precision) -> None:
    assert examine("emulated", precision=precision.value).hardware.precision is precision


@pytest.mark.slow
def test_the_coordinator_evaluates_on_it() -> None:
    here, away = (
        Network(
            ModelConfig(),
            DataConfig(source="embedded"),
            "fedavg",
            3,
            EvaluationHardwareConfig(device=device),
        )
        for device in ("cpu", "emulated")
    )
    first = here.start().first
    away.start()
    score = here.accuracy(first)
    with accelerator.counting() as counts:
        assert away.accuracy(first) == pytest.approx(score, abs=0.002)
    assert counts.to_device_bytes >= first.nbytes
