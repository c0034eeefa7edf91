"""Every method on an accelerator that fails: at each allocation and at each launch of a turn."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from fededge.errors import HardwareError
from fededge.flat import FlatModel
from fededge.hardware import CPU, Hardware
from fededge.methods import METHODS, Private, method
from fededge.models.base import Classifier
from fededge.models.head import CosineHead
from fededge.training import Answer, Task, Trainer
from tests import accelerator
from tests.methods.test_accelerator import TRAINING, Scale, all_near, examples, near, task
from tests.methods.test_contract import SINGLE

ONE_STEP = dataclasses.replace(TRAINING, epochs=1)
WHOLE_BATCHES = ["fedphp(transfer=mmd)"]
"""Methods whose loss needs the examples of a batch together."""


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    found = accelerator.load()
    if isinstance(found, str):
        pytest.skip(found)


def quickest(name: str) -> str:
    """The method, with one epoch of those that it adds by itself."""
    tunes = "epochs" in {field.name for field in dataclasses.fields(METHODS[name])}
    return f"{name}(epochs=1)" if tunes else name


EVERY = [quickest(name) for name in SINGLE]


def trainer(name: str, hardware: Hardware) -> Trainer:
    """A device with one batch of examples. Without batch norm, batches can be split."""
    head = CosineHead if name == "lfd" else nn.Linear
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        net = FlatModel(Classifier(body, head(196, 3)))
    data = examples(ONE_STEP.batch_size, held=2)
    return Trainer("d1", net, Scale(), data, method(name), hardware)


def third_turn(one: Trainer) -> tuple[Task, Private]:
    """The task and the private state of a turn in which all private state exists."""
    asked = dataclasses.replace(task(one), hyper=ONE_STEP)
    private = one.turn(asked, one.turn(asked, Private()).private).private
    return dataclasses.replace(asked, number=2), private


def agrees(answer: Answer, expected: Answer) -> bool:
    return (
        near(answer.upload, expected.upload)
        and near(answer.personal, expected.personal)
        and all_near(answer.scalars, expected.scalars)
        and all_near(dict(answer.private.items()), dict(expected.private.items()))
    )


@pytest.mark.parametrize("name", [*EVERY, *WHOLE_BATCHES])
def test_a_turn_survives_each_failed_allocation_or_says_a_sentence(name: str) -> None:
    """Smaller batches give the same mathematics: model, scalars and private state."""
    one = trainer(name, Hardware(device="emulated"))
    asked = third_turn(one)
    expected = trainer(name, CPU).turn(*asked)
    with accelerator.counting() as counted:
        one.turn(*asked)
    said, answers = [], []
    for n in range(1, counted.allocations + 1):
        try:
            with accelerator.fail_allocation(n):
                answers.append(one.turn(*asked))
        except HardwareError as error:
            said.append(str(error))
    assert len(said) + len(answers) == counted.allocations
    assert all("out of memory (" in text and "MB free of" in text for text in said)
    assert all(agrees(answer, expected) for answer in answers)
    assert bool(answers) is (name not in WHOLE_BATCHES)
    assert agrees(one.turn(*asked), expected)


@pytest.mark.parametrize("name", EVERY)
def test_each_failed_launch_is_a_sentence_and_the_next_turn_works(name: str) -> None:
    one = trainer(name, Hardware(device="emulated"))
    asked = third_turn(one)
    expected = trainer(name, CPU).turn(*asked)
    with accelerator.counting() as counted:
        one.turn(*asked)
    for n in range(1, counted.launches + 1):
        with accelerator.fail_launch(n), pytest.raises(HardwareError, match="launch failed"):
            one.turn(*asked)
    assert agrees(one.turn(*asked), expected)
