"""The federation's network: its layout and first values, and how good a model of it is.

Nothing else in a coordinator needs torch. So this runs in a process of its own, unless torch is
loaded already: importing it takes half a gigabyte. The process ends once the network is built, or
stays if every version is to be evaluated.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

from fededge import methods, models
from fededge._internal.lazy_torch import torch, torch_is_loaded
from fededge.config import DataConfig, ModelConfig
from fededge.data.local import evaluation_set, model_spec
from fededge.errors import FedEdgeError, StoreError
from fededge.flat import FlatModel, Layout, Vector, as_numpy
from fededge.model_spec import ModelSpec
from fededge.models.evaluation import accuracy
from fededge.training import prepare_threads

__all__ = ["Founded", "Network", "serve"]

log = logging.getLogger("coordinator")


class Founded(NamedTuple):
    """The network's spec and layout, and the values that a run begins with."""

    spec: ModelSpec
    layout: Layout
    first: Vector

    def without_model(self) -> Founded:
        """The same without the first values: a run that goes on needs no second model in memory."""
        return self._replace(first=self.first[:0].copy())


@dataclass(frozen=True)
class NetworkRequest:
    """The configured network, and the data to evaluate it on."""

    model: ModelConfig
    data: DataConfig
    method: str
    seed: int

    @property
    def judged(self) -> bool:
        return self.data.source != "none"


class Network:
    """The network wherever it is. The constructor only stores; `start` and `stop` do."""

    def __init__(self, model: ModelConfig, data: DataConfig, method: str, seed: int) -> None:
        self.wanted = NetworkRequest(model, data, method, seed)
        self._here: Built | None = None
        self._there: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Founded:
        """Build it; a network that the method cannot train, or data that is not there, is refused.

        Started again, it takes as long again and gives the same.
        """
        if torch_is_loaded():
            self._here = Built(self.wanted)
            return self._here.founded
        self._begin()
        founded = self._answer()
        if not isinstance(founded, Founded):
            raise StoreError(
                "the process that builds the network was killed; is there enough memory for torch?"
            )
        if not self.wanted.judged:
            self.stop()
        return founded

    def accuracy(self, model: Vector) -> float | None:
        """A model's accuracy on the coordinator's data; None without data, or if evaluation fails.

        The federation goes on without it: only a number in the journal is missing.
        """
        if not self.wanted.judged:
            return None
        if self._here is None and self._there is None:
            self.start()
        if self._here is not None:
            return self._here.accuracy(model)
        assert self._there is not None
        with contextlib.suppress(OSError):
            self._there.send(model)
        found = self._answer()
        if isinstance(found, float):
            return found
        log.error("the process that evaluates was killed: this version has no accuracy")
        self.stop()
        return None

    def stop(self) -> None:
        """End the process; it would end by itself too, but takes its time to put torch away."""
        if self._there is not None:
            self._there.close()
            self._there = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _begin(self) -> None:
        ours, end = socket.socketpair()
        with end:  # the child alone holds it then: its exit closes the connection
            program = f"from fededge_server.network import serve; serve({end.fileno()})"
            command, passed = [sys.executable, "-c", program], (end.fileno(),)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed)
        self._there = Connection(ours.detach())
        with contextlib.suppress(OSError):
            self._there.send(self.wanted)

    def _answer(self) -> object:
        """The process's answer; None if it is gone. Its errors are raised here."""
        assert self._there is not None
        try:
            answer: object = self._there.recv()
        except (EOFError, OSError):
            return None
        if isinstance(answer, FedEdgeError):
            raise answer
        return answer


class Built:
    """The network where torch is."""

    def __init__(self, wanted: NetworkRequest) -> None:
        spec = model_spec(wanted.model, wanted.data)
        self.net = FlatModel(models.build_for(spec, wanted.seed), trains=False)
        methods.method(wanted.method).needs(self.net.module)
        self.founded = Founded(spec, self.net.layout, as_numpy(self.net.vector))
        self.test = evaluation_set(wanted.data, spec) if wanted.judged else None
        self.preprocess = models.Preprocess(spec)

    def accuracy(self, model: Vector) -> float | None:
        if self.test is None:
            return None
        self.net.swap(torch.from_numpy(model))
        return accuracy(self.net.module, self.preprocess, self.test.x, self.test.y)


def serve(descriptor: int) -> None:
    """A process of its own: build the network, then evaluate what comes until nothing can.

    Args:
        descriptor: of the socket to the coordinator, which it was started with.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a signal for the coordinator may reach both
        signal.signal(number, signal.SIG_IGN)
    end = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        try:
            wanted: NetworkRequest = end.recv()
            prepare_threads()
            built = Built(wanted)
            end.send(built.founded)
            while wanted.judged:
                end.send(built.accuracy(end.recv()))
        except FedEdgeError as error:
            end.send(error)
