"""Every method and composition on an accelerator, against the CPU.

The device is the emulated accelerator of `tests/accelerator`; FEDEDGE_TEST_DEVICE=cuda takes a GPU.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fededge.flat import FlatModel, as_tensors
from fededge.hardware import CPU, Hardware
from fededge.methods import Hyper, Private, method
from fededge.models.base import Classifier
from fededge.models.head import CosineHead
from fededge.training import Answer, Examples, Task, Trainer, placement
from tests import accelerator
from tests.merging import merged_turns
from tests.methods.test_contract import COMPOSED, SINGLE

CLASSES = 3
TRAINING = Hyper(epochs=2, batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.01, clip_norm=5.0)
EXTRA = ["fedala+mixup", "fedphp(transfer=mmd)", "map(rs=smooth)+mixup", "fedacd+scaffold"]
every_method = pytest.mark.parametrize("name", [*SINGLE, *COMPOSED, *EXTRA])


class Scale(nn.Module):
    """Pixels to 0..1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32) / 255


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    name = os.environ.get("FEDEDGE_TEST_DEVICE", "emulated")
    if name == "emulated" and isinstance(built := accelerator.load(), str):
        pytest.skip(built)
    return Hardware(device=name)


@pytest.fixture
def emulated(hardware: Hardware) -> Hardware:
    if not hardware.device.startswith("emulated"):
        pytest.skip("only the emulated accelerator counts what it does")
    return hardware


def network(name: str) -> FlatModel:
    """A convolution with batch norm, and no dropout: devices draw differently."""
    head = CosineHead if name.startswith("lfd") else nn.Linear
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        return FlatModel(Classifier(nn.Sequential(*layers), head(196, CLASSES)))


def examples(count: int, held: int = 5) -> Examples:
    draw = torch.Generator().manual_seed(count)
    x = torch.randint(0, 256, (count + held, 1, 16, 16), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, CLASSES - 1, (count + held,), generator=draw)
    return Examples(x[:count], y[:count], x[count:], y[count:], CLASSES)


def trainer(name: str, count: int, hardware: Hardware) -> Trainer:
    return Trainer("d1", network(name), Scale(), examples(count), method(name), hardware)


def task(one: Trainer, number: int = 0, w: Tensor | None = None, **sent: Tensor) -> Task:
    w = one.net.vector.cpu().clone() if w is None else w
    state = as_tensors(one.method.send(one.method.initial(one.net.layout)))
    return Task(0, number, TRAINING, w, {**state, **sent}, 2)


def two_rounds(name: str, hardware: Hardware) -> list[dict[str, Answer]]:
    """The answers of a device with examples and of one with a single example, merged between."""
    trainers = {
        device: Trainer(device, network(name), Scale(), examples(count), method(name), hardware)
        for device, count in (("d1", 10), ("d2", 1))
    }
    first = trainers["d1"]
    stack, layout = first.method, first.net.layout
    w, state = first.net.vector.cpu().clone(), stack.initial(layout)
    private = dict.fromkeys(trainers, Private())
    rounds = []
    for number in range(2):
        sent = as_tensors(stack.send(state))
        asked = Task(0, number, TRAINING, w, sent, 2)
        answers = {d: one.turn(asked, private[d]) for d, one in trainers.items()}
        private = {device: answer.private for device, answer in answers.items()}
        w, state = merged_turns(stack, w, state, answers, devices=3, layout=layout)
        rounds.append(answers)
    return rounds


def near(a: object, b: object) -> bool:
    return bool(np.allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-4))


def all_near(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    return a.keys() == b.keys() and all(near(a[name], b[name]) for name in a)


@every_method
def test_two_rounds_agree_with_the_cpu(name: str, hardware: Hardware) -> None:
    for ours, theirs in zip(two_rounds(name, hardware), two_rounds(name, CPU), strict=True):
        for device, answer in ours.items():
            expected = theirs[device]
            assert answer.upload.is_cpu
            assert near(answer.upload, expected.upload)
            assert near(answer.personal, expected.personal)
            assert all_near(answer.scalars, expected.scalars)
            assert all_near(dict(answer.private.items()), dict(expected.private.items()))


def third_turn(name: str, count: int, epochs: int, hardware: Hardware) -> accelerator.Counts:
    """What a device's third turn does: all private state exists, ALA's weights have converged."""
    one = trainer(name, count, hardware)
    asked = task(one)
    private = one.turn(asked, one.turn(asked, Private()).private).private
    again = dataclasses.replace(asked, hyper=dataclasses.replace(TRAINING, epochs=epochs), number=2)
    with accelerator.counting() as counted:
        one.turn(again, private)
    return counted


@every_method
def test_no_step_waits_and_an_epoch_waits_at_most_three_times(
    name: str, emulated: Hardware
) -> None:
    short, long = (third_turn(name, count, 1, emulated) for count in (8, 24))
    more = long - short
    assert more.synchronisations == 0
    assert more.to_host == 0
    epochs = third_turn(name, 8, 3, emulated) - short
    phases = len(method(name).owner("phases").phase_names)
    assert epochs.synchronisations <= 2 * 3 * phases
    # Only mixup copies in a step: the positions of its partners. Inputs are never copied again.
    assert more.to_device <= (4 * phases if "mixup" in name else 0)
    assert more.to_device_bytes < 16 * 256


@every_method
def test_data_on_the_host_is_copied_once_a_step(
    name: str, emulated: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "RESIDENT_SHARE", 0.0)
    short, long = (third_turn(name, count, 1, emulated) for count in (8, 24))
    more = long - short
    assert more.synchronisations == 0
    assert more.to_device > 0
