"""Small networks, data and devices that the methods' tests train with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from fededge.flat import FlatModel
from fededge.method.base import Batch, Objective, Output, TurnView
from fededge.methods import Hyper, Method, Private, Stack, method
from fededge.models.base import Classifier
from fededge.models.head import Head
from fededge.training import Answer, Examples, Task, Trainer

CLASSES = 3

Nets = Callable[..., FlatModel]
Data = Callable[..., Examples]
Make = Callable[..., Trainer]
Take = Callable[..., Answer]
"""The types of the fixtures: factories of networks, data and trainers; and taking a turn."""


class Scale(nn.Module):
    """Pixels to 0..1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32) / 255


def observing() -> tuple[Method, list[Batch]]:
    """Make a layer that changes nothing, and the list of the batches that it sees."""
    batches: list[Batch] = []

    def objective(self: Method, r: TurnView, out: Output, batch: Batch) -> Objective:
        batches.append(batch)
        return Objective()

    kind: type[Method] = type("Observer", (Method,), {"name": "observer", "objective": objective})
    return kind(), batches


def _network(
    body: Callable[[], nn.Module], width: int, seed: int, head: Head = nn.Linear
) -> FlatModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return FlatModel(Classifier(body(), head(width, CLASSES)))


@pytest.fixture
def plain() -> Callable[..., FlatModel]:
    """A factory of linear networks for 2x2 images: what a reference can compute by itself."""

    def make(seed: int = 0) -> FlatModel:
        return _network(nn.Flatten, 4, seed)

    return make


@pytest.fixture
def deep() -> Callable[..., FlatModel]:
    """A factory of networks with batch norm and dropout, for 16x16 images."""

    def body() -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5)]
        return nn.Sequential(*layers)

    def make(seed: int = 0, head: Head = nn.Linear) -> FlatModel:
        return _network(body, 8, seed, head)

    return make


@pytest.fixture
def examples() -> Callable[..., Examples]:
    """A factory of a device's data: random pixels, labels that skip the last class."""

    def make(count: int, side: int = 2, seed: int = 0, held: int = 4) -> Examples:
        draw = torch.Generator().manual_seed(seed)
        shape = (count + held, 1, side, side)
        x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
        y = torch.randint(0, CLASSES - 1, (count + held,), generator=draw)
        return Examples(x[:count], y[:count], x[count:], y[count:], CLASSES)

    return make


@pytest.fixture
def trainer() -> Callable[..., Trainer]:
    """A factory of devices; the method is given as text, as layers, or as a stack."""

    def make(
        kind: str | Method | Stack, net: FlatModel, data: Examples, device: str = "d1"
    ) -> Trainer:
        if isinstance(kind, str):
            kind = method(kind)
        stack = Stack((kind,)) if isinstance(kind, Method) else kind
        return Trainer(device, net, Scale(), data, stack)

    return make


@pytest.fixture
def turn() -> Callable[..., Answer]:
    """Let a device take a turn, from its network's own values unless others are given."""

    def take(
        device: Trainer,
        private: Private | None = None,
        *,
        received: Tensor | None = None,
        sent: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        number: int = 0,
        turns: int = 1,
        epochs: int = 1,
        batch_size: int = 4,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        clip_norm: float = 0.0,
    ) -> Answer:
        received = device.net.vector.clone() if received is None else received
        hyper = Hyper(epochs, batch_size, lr, momentum, weight_decay, clip_norm)
        task = Task(seed, number, hyper, received, dict(sent or {}), turns)
        return device.turn(task, private or Private())

    return take
