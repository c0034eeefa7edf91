"""Real exported models with known answers: one linear layer, recomputed in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import fededge
from fededge.export import ModelRegistry, Samples, Template, make_candidate
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from tests.origin import ORIGIN

LABELS = ("truck", "bicycle", "päckchen")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)

# Whatever an app need not have cannot be imported, and must not have been.
BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
ABSENT = {"torch", "torchvision", "msgspec", "rich", "onnx", "safetensors", "paho"}
sys.meta_path.insert(0, Absent())
"""


@dataclass(frozen=True)
class Maker:
    """Exports linear models for images of one shape, each with the weights of a seed."""

    spec: ModelSpec
    template: Template

    @classmethod
    def of(cls, shape: tuple[int, int, int]) -> Maker:
        spec = ModelSpec("net", LABELS, shape, MEAN[: shape[0]], STD[: shape[0]])
        return cls(spec, Template.trace(network(shape, 0), spec))

    def export(
        self, models: Path, seed: int, round_: int = 34, use: str = "fp32", key: Any = None
    ) -> None:
        """Make the model of a seed current in this folder, with a variant if one is named."""
        flat = FlatModel(network(self.spec.shape, seed))
        generator = torch.Generator().manual_seed(7)
        size = (9, *self.spec.shape)
        images = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        origin = msgspec.structs.replace(ORIGIN, round=round_)
        candidate = make_candidate(flat, self.template, origin, images)
        if use != "fp32":
            weights = [entry.name for entry in self.template.layout.entries]
            samples = Samples(images, images, torch.zeros(len(images), dtype=torch.int64))
            candidate = candidate.with_variants([use], weights, samples).preferring(use, 100.0)
            assert candidate.manifest.use == use
        ModelRegistry(models, keep=9).publish(candidate if key is None else candidate.signed(key))

    def expected(self, seed: int, pixels: np.ndarray) -> np.ndarray:
        """The probabilities for pixels [C, H, W], in float64."""
        layer = network(self.spec.shape, seed)[1]
        weight, bias = (p.detach().double().numpy() for p in layer.parameters())
        mean, std = (np.array(v)[:, None, None] for v in (self.spec.mean, self.spec.std))
        logits = weight @ ((pixels / 255 - mean) / std).ravel() + bias
        powers = np.exp(logits - logits.max())
        return np.asarray(powers / powers.sum())


def network(shape: tuple[int, ...], seed: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), len(LABELS)))


def bare(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Python without torch and the like; it sees the same fededge as this test."""
    place = str(Path(fededge.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", BARE + f"sys.path.insert(0, {place!r})\n" + code]
        + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="session")
def colour() -> Maker:
    return Maker.of((3, 8, 10))


@pytest.fixture(scope="session")
def grey() -> Maker:
    return Maker.of((1, 8, 10))


@pytest.fixture
def models(colour: Maker, tmp_path: Path) -> Path:
    """The folder of a device with one model, of seed 1."""
    colour.export(tmp_path / "models", seed=1)
    return tmp_path / "models"


@pytest.fixture
def pixels() -> np.ndarray:
    """One colour image [C, H, W] of the model's size."""
    return np.random.default_rng(3).integers(0, 256, (3, 8, 10), np.uint8)


@pytest.fixture
def point() -> Callable[[Path, str], None]:
    """Switch `current` to another model as the agent does, with an atomic rename of the link."""

    def swap(models: Path, number: str) -> None:
        link = models / ".current.new"
        link.symlink_to(number)
        os.replace(link, models / "current")

    return swap
