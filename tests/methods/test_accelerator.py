"""Every method and composition on an accelerator, against the CPU.

The device is the emulated accelerator of `tests/accelerator`; FEDEDGE_TEST_DEVICE=cuda takes a GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import FlatModel, as_tensors
from fededge.hardware import CPU, Hardware, Precision
from fededge.methods import METHODS, Hyper, Private, method
from fededge.models.base import Classifier
from fededge.models.head import CosineHead
from fededge.ops import _backend
from fededge.training import Answer, Examples, Task, Trainer, placement
from tests import accelerator
from tests.merging import merged_turns
from tests.methods.test_contract import COMPOSED, SINGLE, combines

CLASSES = 3
BATCHES = 3
"""Batches of an epoch in the tests that count."""

TRAINING = Hyper(epochs=2, batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.01, clip_norm=5.0)
EXTRA = ["fedala+mixup", "ala+fedbalance", "map(rs=smooth)+mixup", "fedacd+scaffold"]
FIVE = ["fedacd", "fedala", "fedbalance", "map", "lfd"]


def with_options(name: str) -> Iterator[str]:
    """A method with every other value of its options that are a choice."""
    kinds = get_type_hints(METHODS[name])
    for field in dataclasses.fields(METHODS[name]):
        kind = kinds[field.name]
        choices = ("true", "false") if kind is bool else get_args(kind)
        if kind is bool or get_origin(kind) is Literal:
            usual = str(field.default).lower() if kind is bool else field.default
            yield from (f"{name}({field.name}={value})" for value in choices if value != usual)


def next_partner(name: str) -> Iterator[str]:
    """A method with the first of those that follow it in the catalogue, and combine with it."""
    place = SINGLE.index(name)
    others = (f"{name}+{other}" for other in (*SINGLE[place + 1 :], *SINGLE[:place]))
    yield from [text for text in others if combines(text)][:1]


OPTIONS = [text for name in SINGLE for text in with_options(name)]
PAIRS = [text for name in SINGLE for text in next_partner(name)]
WITHOUT_NETWORK = ["fedrod+lfd", "lfd+fedrod"]
"""Pairs that compose, but need different heads."""

every_method = pytest.mark.parametrize(
    "name", dict.fromkeys([*SINGLE, *COMPOSED, *OPTIONS, *PAIRS, *EXTRA])
)


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
    head = CosineHead if "lfd" in name else nn.Linear
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


def check_near(answer: Answer, expected: Answer) -> None:
    assert answer.upload.is_cpu
    assert near(answer.upload, expected.upload)
    assert near(answer.personal, expected.personal)
    assert all_near(answer.scalars, expected.scalars)
    assert all_near(dict(answer.private.items()), dict(expected.private.items()))


@every_method
def test_two_rounds_agree_with_the_cpu(name: str, hardware: Hardware) -> None:
    for ours, theirs in zip(two_rounds(name, hardware), two_rounds(name, CPU), strict=True):
        for device, answer in ours.items():
            check_near(answer, theirs[device])


def one_turn(name: str, hardware: Hardware) -> Answer:
    one = trainer(name, 6, hardware)
    hyper = dataclasses.replace(TRAINING, epochs=1)
    return one.turn(dataclasses.replace(task(one), hyper=hyper), Private())


@pytest.mark.parametrize("first", SINGLE)
def test_every_ordered_pair_agrees_with_the_cpu(first: str, hardware: Hardware) -> None:
    pairs = [f"{first}+{other}" for other in SINGLE if other != first]
    for name in [pair for pair in pairs if combines(pair) and pair not in WITHOUT_NETWORK]:
        check_near(one_turn(name, hardware), one_turn(name, CPU))


@pytest.mark.parametrize("name", WITHOUT_NETWORK)
def test_a_pair_that_no_network_serves_is_refused(name: str) -> None:
    for head in (nn.Linear, CosineHead):
        with pytest.raises(MethodError, match="needs a"):
            method(name).needs(Classifier(nn.Flatten(), head(4, CLASSES)))


def counted_turns(name: str, hardware: Hardware) -> Iterator[list[accelerator.Counts]]:
    """Count the operations of each step of three turns; the third has all private state."""
    one = trainer(name, TRAINING.batch_size * BATCHES, hardware)
    hyper = dataclasses.replace(TRAINING, epochs=2 * phases_of(name))
    private = Private()
    for number in range(3):
        asked = dataclasses.replace(task(one), hyper=hyper, number=number)
        private, steps = counted_steps(one, asked, private)
        yield steps


def counted_steps(
    one: Trainer, asked: Task, private: Private
) -> tuple[Private, list[accelerator.Counts]]:
    seen = [accelerator.counts()]
    answer = one.turn(asked, private, lambda *_: seen.append(accelerator.counts()))
    return answer.private, [after - before for before, after in itertools.pairwise(seen)]


def phases_of(name: str) -> int:
    return len(method(name).owner("phases").phase_names)


def epochs_of(name: str, hardware: Hardware) -> Iterator[list[accelerator.Counts]]:
    """The epochs of three turns; a phase is set up in the first step of its first epoch."""
    for steps in counted_turns(name, hardware):
        epochs = [steps[i : i + BATCHES] for i in range(0, len(steps), BATCHES)]
        assert len(epochs) >= 2 * phases_of(name)
        set_up = [epoch for epoch in epochs if epoch[0].synchronisations]
        assert len(set_up) <= phases_of(name)
        for epoch in set_up:
            epoch[0] = accelerator.Counts()
        yield from epochs


def check_waiting(epoch: list[accelerator.Counts]) -> None:
    """No step waits; the end of an epoch does at most three times."""
    *steps, last = epoch
    assert all(step.synchronisations == step.to_host == 0 for step in steps)
    assert last.synchronisations <= 3


@every_method
def test_no_step_waits_and_resident_data_is_not_copied(name: str, emulated: Hardware) -> None:
    """An epoch begins with a copy of its order, and of mixup's partners; no step copies."""
    for first, *steps in epochs_of(name, emulated):
        check_waiting([first, *steps])
        assert first.to_device <= 2
        assert first.to_device_bytes <= 2 * 8 * TRAINING.batch_size * BATCHES
        assert all(step.to_device == 0 for step in steps)


@every_method
def test_data_on_the_host_is_copied_once_a_step(
    name: str, emulated: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "RESIDENT_SHARE", 0.0)
    copied, inputs = [], examples(TRAINING.batch_size * BATCHES).x
    for epoch in epochs_of(name, emulated):
        check_waiting(epoch)
        assert sum(step.to_device for step in epoch) <= 2 + BATCHES
        assert all(step.to_device <= 1 for step in epoch[1:])
        copied.append(sum(step.to_device_bytes for step in epoch))
    positions = 2 * 8 * len(inputs)
    assert inputs.nbytes < max(copied) <= inputs.nbytes + positions


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
@pytest.mark.parametrize("name", FIVE)
def test_no_step_waits_in_less_precision(
    name: str, precision: Precision, emulated: Hardware
) -> None:
    for epoch in epochs_of(name, dataclasses.replace(emulated, precision=precision)):
        check_waiting(epoch)


@pytest.mark.parametrize("name", FIVE)
def test_no_step_waits_in_plain_torch(
    name: str, emulated: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU whose kernels were not built runs the reference."""
    monkeypatch.setattr(_backend, "other_device", lambda _: _backend.Choice("reference", "a test"))
    for epoch in epochs_of(name, emulated):
        check_waiting(epoch)
