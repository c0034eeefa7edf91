"""Small networks that are awkward to export, each in its own way, and images for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fededge.export import Origin, Template
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from tests.origin import ORIGIN


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def batch_norm() -> nn.Module:
    """Two layers of one shape, whose equal initial values an exporter would merge."""
    layers = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    layers += [nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


class Tied(nn.Module):
    """The same weight under two names, and the same layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(192, 192, bias=False)
        self.second = nn.Linear(192, 192, bias=False)
        self.second.weight = self.first.weight
        self.block = nn.Linear(192, 192)
        self.again = self.block
        self.head = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x.flatten(1)).relu()).relu()
        logits: Tensor = self.head(self.again(self.block(x).tanh()).tanh())
        return logits


def dropout() -> nn.Module:
    return nn.Sequential(nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(192, 3), nn.Dropout(0.5))


class Unused(nn.Module):
    """One layer takes no part in the answer; one tensor is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(192, 7)
        self.head = nn.Linear(192, 3)
        self.offset = nn.Parameter(torch.full((192,), 0.3))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(x.flatten(1) + self.offset))
        return logits / self.temperature


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "conv": conv,
    "batch norm": batch_norm,
    "tied": Tied,
    "dropout": dropout,
    "unused": Unused,
}


def build(name: str, seed: int) -> nn.Module:
    """A network in which every number is random, running statistics included."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[name]()
        for key, tensor in network.state_dict().items():
            if tensor.is_floating_point():
                noise = 0.2 * torch.rand_like(tensor)
                tensor.add_(noise if "temperature" not in key else 0)
    return network.train()


@pytest.fixture(params=NETWORKS)
def make(request: pytest.FixtureRequest) -> Callable[[int], nn.Module]:
    """Builds one of the networks, given a seed."""
    return lambda seed: build(request.param, seed)


@pytest.fixture
def network() -> nn.Module:
    return build("batch norm", seed=1)


@pytest.fixture
def spec() -> ModelSpec:
    labels = ("truck", "bicycle", "päckchen")
    return ModelSpec("net", labels, (3, 8, 8), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (100, 3, 8, 8), generator=generator, dtype=torch.uint8)


@pytest.fixture
def origin() -> Origin:
    return ORIGIN


@pytest.fixture
def flat(network: nn.Module) -> FlatModel:
    return FlatModel(network)


@pytest.fixture
def template(flat: FlatModel, spec: ModelSpec) -> Template:
    return Template.trace(flat.module, spec)
