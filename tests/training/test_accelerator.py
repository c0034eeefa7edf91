"""A turn on the emulated accelerator: lack of memory, failures, precision, data on the host."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from fededge.errors import HardwareError, MethodError
from fededge.flat import FlatModel
from fededge.hardware import CPU, Hardware, Precision
from fededge.methods import Hyper, Private, method
from fededge.models.base import Classifier
from fededge.training import Answer, Task, Trainer, loss_scale, placement
from tests import accelerator
from tests.methods.test_accelerator import Scale, examples

HYPER = Hyper(epochs=1, batch_size=8, lr=0.05, momentum=0.9)


@pytest.fixture(scope="module")
def emulated() -> Hardware:
    built = accelerator.load()
    if isinstance(built, str):
        pytest.skip(built)
    return Hardware(device="emulated")


def device(hardware: Hardware, norm: bool = False, count: int = 16) -> Trainer:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        layers = [nn.Conv2d(1, 4, 3), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU()]
        body = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten())
        net = FlatModel(Classifier(body, nn.Linear(196, 3)))
    return Trainer("d1", net, Scale(), examples(count), method("fedacd"), hardware)


def turn(one: Trainer, hyper: Hyper = HYPER, norm: bool = False) -> Answer:
    """A turn from the first model, however often the device has trained."""
    received = device(CPU, norm).net.vector
    return one.turn(Task(0, 0, hyper, received, {}), Private())


def test_batch_norm_is_not_split(emulated: Hardware) -> None:
    one = device(emulated, norm=True)
    turn(one, norm=True)
    with accelerator.counting() as counted:
        turn(one, norm=True)
    said = []
    for n in range(1, counted.allocations + 1):
        with accelerator.fail_allocation(n), pytest.raises(HardwareError) as raised:
            turn(one, norm=True)
        said.append(str(raised.value))
    assert any("batch norm needs whole batches" in text for text in said)


@pytest.mark.parametrize(
    "error",
    [
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        "CUDA error: out of memory\nCUDA kernel errors might be reported at some other API call",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:838",
    ],
)
def test_every_error_of_a_lack_of_memory_makes_smaller_batches(error: str) -> None:
    """A driver that cannot train on more than four examples says so in its own words."""
    expected = turn(device(CPU))
    one, sizes = device(CPU), list[int]()

    def refuse(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if module.training:
            sizes.append(len(inputs[0]))
            if sizes[-1] > 4:
                raise RuntimeError(error)

    one.net.module.get_submodule("body.0").register_forward_pre_hook(refuse)
    answer = turn(one)
    assert sizes == [8, 4, 4, 4, 4]
    assert torch.allclose(answer.upload, expected.upload, atol=1e-5)
    assert answer.scalars["loss"] == pytest.approx(expected.scalars["loss"], rel=1e-5)


def test_little_memory_makes_small_batches_of_the_same_mathematics(emulated: Hardware) -> None:
    hyper = dataclasses.replace(HYPER, batch_size=16)
    expected = turn(device(CPU), hyper)
    one = device(emulated)
    turn(one, hyper)
    module = torch.get_device_module("emulated")
    module.reset_peak_memory_stats()
    turn(one, hyper)
    used, peak = module.memory_allocated(), module.max_memory_allocated()
    with accelerator.limited_memory(used + (peak - used) * 3 // 4):
        answer = turn(one, hyper)
    assert torch.allclose(answer.upload, expected.upload, atol=1e-4)
    assert answer.scalars["loss"] == pytest.approx(expected.scalars["loss"], rel=1e-4)


def test_a_loss_that_is_not_finite_is_named_with_its_step(emulated: Hardware) -> None:
    hyper = dataclasses.replace(HYPER, lr=1e30, epochs=2)
    said = []
    for hardware in (CPU, emulated):
        with pytest.raises(MethodError) as raised:
            turn(device(hardware), hyper)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert "step" in said[0]


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
def test_less_precision_is_near_and_uploads_float32(
    precision: Precision, emulated: Hardware
) -> None:
    full = turn(device(CPU))
    answer = turn(device(dataclasses.replace(emulated, precision=precision)))
    assert answer.upload.dtype == torch.float32
    assert torch.allclose(answer.upload, full.upload, atol=0.02)
    assert not torch.allclose(answer.upload, full.upload, rtol=0, atol=1e-7)
    assert answer.scalars["loss"] == pytest.approx(full.scalars["loss"], rel=0.05)


def exploding(one: Trainer, calls: set[int]) -> None:
    """Make the gradients of these calls, counted from 1, overflow."""
    seen = itertools.count(1)

    def explode(_: nn.Module, grads: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        return tuple(grad * math.inf for grad in grads) if next(seen) in calls else None

    one.net.module.get_submodule("head").register_full_backward_pre_hook(explode)


def test_a_step_that_overflows_is_taken_back(emulated: Hardware) -> None:
    one = device(dataclasses.replace(emulated, precision=Precision.FLOAT16), count=24)
    exploding(one, {2})
    seen = list[torch.Tensor]()
    received = device(CPU).net.vector
    asked = Task(0, 0, HYPER, received, {})
    one.turn(asked, Private(), lambda *_: seen.append(one.net.vector.cpu()))
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise([received, *seen])]
    assert moved == [True, False, True]


def test_the_first_step_finds_its_scale(
    emulated: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with one batch trains, too: its first gradient is made again with less scale."""
    half = dataclasses.replace(emulated, precision=Precision.FLOAT16)
    hyper = dataclasses.replace(HYPER, batch_size=16)
    expected = turn(device(half), hyper).upload
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**40)
    found = turn(device(half), hyper).upload
    assert not torch.equal(found, device(CPU).net.vector)
    assert torch.allclose(found, expected, atol=1e-4)


def test_a_phase_whose_gradients_all_overflow_is_an_error(emulated: Hardware) -> None:
    one = device(dataclasses.replace(emulated, precision=Precision.FLOAT16))
    exploding(one, set(range(1, 1000)))
    with pytest.raises(MethodError, match="every gradient overflows float16"):
        turn(one)


def test_float32_is_not_rounded_to_tf32(emulated: Hardware) -> None:
    """A GPU's convolutions would be by default; other code of the process keeps its setting."""
    before, during = torch.backends.cudnn.allow_tf32, list[bool]()
    one = device(emulated)
    one.net.module.get_submodule("body.0").register_forward_pre_hook(
        lambda *_: during.append(torch.backends.cudnn.allow_tf32)
    )
    turn(one)
    assert set(during) == {False}
    assert torch.backends.cudnn.allow_tf32 is before is True


def test_data_on_the_host_gives_the_same_model(
    emulated: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = turn(device(emulated))
    monkeypatch.setattr(placement, "RESIDENT_SHARE", 0.0)
    one = device(emulated)
    assert torch.equal(turn(one).upload, resident.upload)
    assert one.placed.x.is_cpu
    assert one.placed.y.device.type == "emulated"


def test_results_cross_once(emulated: Hardware) -> None:
    """The model, which is also the personal one, and FedACD's numbers: no second copy of it."""
    one = device(emulated)
    turn(one)
    with accelerator.counting() as counted:
        turn(one)
    assert one.net.vector.nbytes <= counted.to_host_bytes < 1.5 * one.net.vector.nbytes
