"""pfl-research's simulation as a contender of `peers.py`: processes of torchrun."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peer_work import PlainTorch, SimulatedJob, SimulatedRounds
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

__all__ = ["simulate"]


class Network(nn.Module):
    """The network with the loss that pfl asks for."""

    def __init__(self, net: PlainTorch) -> None:
        super().__init__()
        self.inner, self.preprocess = net.module, net.preprocess

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return F.cross_entropy(self.inner(self.preprocess(x)), y)

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}  # the last model alone is tested, by the same code for all


class Clock(TrainingProcessCallback):  # type: ignore[misc]  # may not be installed
    """Notes when a round ends."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
        self.moments.append(time.perf_counter())
        return False, Metrics()


def simulate(job: SimulatedJob) -> SimulatedRounds:
    net, hyper, count = PlainTorch(job), job.setup.hyper, job.chosen.participants
    network = Network(net)
    training = FederatedDataset(partial(_shard, job), partial(next, _schedule(job)))
    backend = SimulatedBackend(training, training, postprocessors=[WeightByDatapoints()])
    local = partial(torch.optim.SGD, momentum=hyper.momentum, weight_decay=hyper.weight_decay)
    model = PyTorchModel(network, local, torch.optim.SGD(network.parameters(), lr=1.0))
    clock, rounds = Clock(), job.chosen.rounds
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds + 1, count, 0),
        backend,
        model,
        NNTrainHyperParams(
            local_batch_size=hyper.batch_size,
            local_num_epochs=hyper.epochs,
            local_learning_rate=hyper.lr,
        ),
        callbacks=[clock],
    )
    seconds = [b - a for a, b in zip(clock.moments, clock.moments[1:], strict=False)]
    found = job.result(seconds, net.model)
    if int(os.environ.get("RANK", "0")):
        os._exit(0)  # the first process speaks
    return found


def _schedule(job: SimulatedJob) -> Iterator[str]:
    number = 0
    while True:
        yield from job.participants(number)
        number += 1


def _shard(job: SimulatedJob, device: str) -> PyTorchTensorDataset:
    data = job.setup.devices[device]
    order = torch.randperm(len(data.y))
    return PyTorchTensorDataset((data.x[order], data.y[order]), user_id=device)
