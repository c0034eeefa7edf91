"""A training that is a little arithmetic: it depends on everything that a real one depends on."""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor, nn

from fededge import methods
from fededge.flat import FlatModel
from fededge.methods import Private
from fededge.model_spec import ModelSpec
from fededge.training import Answer, StepCallback, Task

__all__ = ["ACCURACY", "EXAMPLES", "NETWORK", "SPEC", "FakeTrainer", "honest_scalars", "method_of"]

ACCURACY = "personal_accuracy"
EXAMPLES = 10
"""The number of examples of every honest device."""

SPEC = ModelSpec("mlpnet", ("a", "b"), (1, 8, 8), (0.5,), (0.5,))


def network() -> FlatModel:
    """608 numbers: three chunks up, and five down, where SCAFFOLD's c comes along."""
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 8)))


NETWORK = network()


method_of = functools.cache(methods.method)


def honest_scalars(method: str) -> dict[str, float]:
    """The scalars of an honest device after a turn of one step; all are within their ranges."""
    common = {"examples": float(EXAMPLES), "steps": 1.0, "loss": 0.5}
    own = method_of(method).scalars - common.keys() - {ACCURACY}
    return common | dict.fromkeys(sorted(own), 1.0)


class FakeTrainer:
    """A turn that depends on device, round, model, SCAFFOLD's c and the device's own c_i.

    `judges`: it has examples to tell an accuracy by.
    """

    def __init__(self, device: str, method: str, judges: bool) -> None:
        self.device = device
        self.judges = judges
        self.net = NETWORK
        self.method = method_of(method)

    def turn(self, task: Task, private: Private, progress: StepCallback) -> Answer:
        progress(1, 1)
        seed = hashlib.sha256(f"{self.device}/{task.number}".encode()).digest()[:7]
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "big"))
        noise = torch.randn(task.received.shape, generator=generator)
        upload = 0.9 * task.received + 0.1 * noise
        after = private
        if "scaffold.c" in task.sent:
            own, c = private.get("scaffold.c_i"), task.sent["scaffold.c"]
            c_i = own if isinstance(own, Tensor) else torch.zeros_like(noise)
            upload = upload + 0.01 * (c_i - c)
            after = Private({"scaffold.c_i": c_i - c + (task.received - upload)})
        scalars = honest_scalars(str(self.method)) | ({ACCURACY: 0.75} if self.judges else {})
        return Answer(upload, scalars, after, upload, 0.75)
