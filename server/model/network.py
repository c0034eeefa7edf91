"""The federation's network: its layout and first values, and how good a model of it is.

Nothing else in a coordinator needs torch. So this runs in a process of its own, unless torch is
loaded already: importing it takes half a gigabyte. The process ends once the network is built, or
stays if every version is to be evaluated. A coordinator that restarts knows the network
(`kept_network`), and has the process only for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
import numpy as np

from fededge import methods, models
from fededge._internal import logs
from fededge._internal.lazy_torch import torch, torch_is_loaded
from fededge._internal.torch_process import TorchProcess, report_progress
from fededge.config import DataConfig, EvaluationHardwareConfig, ModelConfig
from fededge.data.local import evaluation_set, model_spec
from fededge.errors import ConfigError, FedEdgeError
from fededge.flat import FlatModel, Layout, Vector, as_numpy
from fededge.hardware import CPU, Hardware, choose, with_passive_threads
from fededge.model_spec import ModelSpec
from fededge.models.evaluation import accuracy
from fededge.training import prepare_threads

__all__ = ["Founded", "Network", "NetworkRequest", "serve"]

log = logging.getLogger("coordinator")

PROGRAM = "fededge_server.model.network:serve"

ON_CPU = EvaluationHardwareConfig()

STALL = 900.0
"""Seconds without an evaluated batch after which the process is killed."""


class Founded(NamedTuple):
    """The network's spec and layout, and the values that a run begins with."""

    spec: ModelSpec
    layout: Layout
    first: Vector

    @classmethod
    def without_values(cls, spec: ModelSpec, layout: Layout) -> Founded:
        """The network of a run that goes on: it needs no second model in memory."""
        return cls(spec, layout, np.empty(0, np.float32))


@dataclass(frozen=True)
class NetworkRequest:
    """The configured network, and the data and hardware to evaluate it on.

    `values`: the first values are wanted too.
    """

    model: ModelConfig
    data: DataConfig
    method: str
    seed: int
    hardware: EvaluationHardwareConfig
    values: bool = True

    @property
    def judged(self) -> bool:
        return self.data.source != "none"


class Network:
    """The network wherever it is. The constructor only stores; `start` and `stop` do."""

    def __init__(
        self,
        model: ModelConfig,
        data: DataConfig,
        method: str,
        seed: int,
        hardware: EvaluationHardwareConfig = ON_CPU,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.wanted = NetworkRequest(model, data, method, seed, hardware)
        self._here: Built | None = None
        self._known: Founded | None = None
        self._owed = False
        name = "the process that builds the network"
        self._there = TorchProcess(name, PROGRAM, STALL, progress)

    def start(self) -> Founded:
        """Build it; a network that the method cannot train, or data that is not there, is refused.

        Started again, it takes as long again and gives the same.
        """
        if torch_is_loaded():
            self._here = Built(self.wanted)
            return self._here.founded
        self._begin(self.wanted)
        founded = self._receive()
        if not self.wanted.judged:
            self.stop()
        return founded

    def resume(self, known: Founded) -> None:
        """Go on with a network that is known, and return at once.

        If versions are evaluated the process builds it meanwhile, for the first of them.
        """
        self._known = known
        if self.wanted.judged and not torch_is_loaded():
            self._begin(replace(self.wanted, values=False))
            self._owed = True

    def _begin(self, wanted: NetworkRequest) -> None:
        self._there.start(with_passive_threads(os.environ))
        self._there.send(wanted)

    def _receive(self) -> Founded:
        founded = self._there.receive()
        assert isinstance(founded, Founded)
        return founded

    def accuracy(self, model: Vector) -> float | None:
        """A model's accuracy on the coordinator's data; None without data, or if evaluation fails.

        The federation goes on without it: only a number in the journal is missing.
        """
        if not self.wanted.judged:
            return None
        try:
            return self._judged(model)
        except FedEdgeError as error:
            log.error("%s: this version has no accuracy", error)
            self.stop()
            return None

    def _judged(self, model: Vector) -> float | None:
        if self._owed or (self._here is None and self._there.pid is None):
            built = self._receive() if self._owed else self.start()
            self._owed = False
            self._check_same(built)
        if self._here is not None:
            return self._here.accuracy(model)
        self._there.send(model)
        found = self._there.receive()
        assert isinstance(found, float)
        return found

    def _check_same(self, built: Founded) -> None:
        """Refuse data that has changed under the same name while nobody looked."""
        known = self._known or built
        if (known.spec, known.layout.hash) != (built.spec, built.layout.hash):
            raise ConfigError(
                "the coordinator's [data] has other labels, shapes or normalisation than when the "
                "run began; put it back, or restart the coordinator without it"
            )

    def stop(self) -> None:
        """End the process; started again by the next call that needs it."""
        self._owed = False
        self._there.stop()


class Built:
    """The network where torch is."""

    def __init__(self, wanted: NetworkRequest) -> None:
        model = msgspec.structs.replace(wanted.model, name=models.load(wanted.model.name))
        spec = model_spec(model, wanted.data)
        self.net = FlatModel(models.build_for(spec, wanted.seed), trains=False)
        methods.method(wanted.method).needs(self.net.module)
        self.founded = (
            Founded(spec, self.net.layout, as_numpy(self.net.vector))
            if wanted.values
            else Founded.without_values(spec, self.net.layout)
        )
        self.test = evaluation_set(wanted.data, spec) if wanted.judged else None
        self.preprocess = models.Preprocess(spec)
        self.hardware = _chosen(wanted.hardware, spec) if wanted.judged else CPU
        self._move()

    def _move(self) -> None:
        device = self.hardware.device
        self.net.to(device)
        self.preprocess.to(device)
        if self.test is not None:
            self.test = replace(self.test, x=self.test.x.to(device), y=self.test.y.to(device))

    def accuracy(self, model: Vector) -> float | None:
        if self.test is None:
            return None
        self.net.swap(torch.from_numpy(model))
        with models.computing_on(self.hardware), models.autocast(self.net.vector):
            return accuracy(self.net.module, self.preprocess, self.test.x, self.test.y)


def _chosen(wish: EvaluationHardwareConfig, spec: ModelSpec) -> Hardware:
    macs = 0 if wish.threads else models.activation_counts(spec).macs
    return choose(wish.device, wish.threads, wish.precision, wish.memory_format, macs)


def serve(end: Connection) -> None:
    """A process of its own: build the network, then evaluate what comes until nothing can."""
    with contextlib.suppress(EOFError, OSError):
        try:
            wanted: NetworkRequest = end.recv()
            logs.set_up()
            prepare_threads()
            built = Built(wanted)
            prepare_threads(built.hardware)
            report = report_progress(end)
            built.preprocess.register_forward_hook(lambda *_: report())  # once for each batch
            end.send(built.founded)
            while wanted.judged:
                end.send(built.accuracy(end.recv()))
        except FedEdgeError as error:
            end.send(error)
