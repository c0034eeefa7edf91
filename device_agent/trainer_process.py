"""The agent's end of its trainer process: torch is there, and only while turns are taken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from fededge._internal.torch_process import RemoteError, TorchProcess
from fededge.config import AgentConfig
from fededge.errors import FedEdgeError, HardwareError, ProcessDiedError
from fededge.hardware import with_passive_threads
from fededge.wire.messages import State
from fededge_agent.exports.export_requests import PersonalModel
from fededge_agent.requests import (
    AbandonRequest,
    ExpectRequest,
    HandOverRequest,
    MeasureRequest,
    PreparedJob,
    PrepareRequest,
    Request,
    StoppedError,
    TrainRequest,
)
from fededge_agent.store import AgentStore, Index, TrainedTurn
from fededge_agent.store.programs import TRAINER

__all__ = ["TrainerProcess"]

STOPS = 30.0
"""Seconds that an abandoned training may take to stop; a process that hangs is killed then."""


class TrainerProcess:
    """Starts the trainer process when it is needed, and again after it died.

    One thread asks; `expect` and `abandon` may be called from another one. The process holds the
    lock of the agent's folder open: after `kill -9` of the agent, the next agent starts only when
    nobody can write into the folder any more.
    """

    def __init__(self, config: AgentConfig, store: AgentStore) -> None:
        self.config = config
        self.store = store
        self.process = TorchProcess("the trainer process", TRAINER, config.hardware.stall)
        self._prepared = False
        self._greeted = False
        self._abandoned: float | None = None

    @property
    def prepared(self) -> bool:
        return self._prepared and self.process.alive

    def start(self) -> None:
        """Start the process, if it does not run, and return at once: torch is imported there."""
        if not self.process.alive:
            self._prepared = self._greeted = False
            self.process.start(with_passive_threads(os.environ), *self.store.descriptors)
            self.process.send(self.config)

    def load_methods(self) -> None:
        """Wait until the process has imported the method files that the operator allows."""
        self.start()
        if self._greeted:
            return
        try:
            self._receive()
        except (FedEdgeError, RemoteError):
            self.stop()
            raise
        self._greeted = True

    def prepare(self, state: State, export: bool = True) -> PreparedJob:
        self._prepared = False
        job: PreparedJob = self._ask(PrepareRequest(state, export))
        self._prepared = True
        return job

    def train(self, state: State, index: Index) -> TrainedTurn:
        """The files of the turn that was trained; a process that does not stop is killed.

        Raises:
            StoppedError: the turn was abandoned.
        """
        if self._abandoned is not None:
            self._abandoned = time.monotonic()
        try:
            turn: TrainedTurn = self._ask(TrainRequest(state, index), lambda: self._hangs)
        except ProcessDiedError:
            if self._hangs:
                raise StoppedError from None
            raise
        return turn

    def expect(self) -> None:
        self._abandoned = None
        self.process.send(ExpectRequest())

    def abandon(self) -> None:
        self._abandoned = time.monotonic()
        self.process.send(AbandonRequest())

    def hand_over(self) -> PersonalModel | None:
        model: PersonalModel | None = self._ask(HandOverRequest())
        return model

    def measure(self) -> None:
        self._ask(MeasureRequest())

    def stop(self) -> None:
        self.process.stop()

    def _ask(self, request: Request, overdue: Callable[[], bool] = lambda: False) -> Any:
        """The answer to a request; a process that died is started again."""
        self.load_methods()
        self.process.send(request)
        if self._abandoned is not None:  # it may have been too early for the process
            self.process.send(AbandonRequest())
        return self._receive(overdue)

    @property
    def _hangs(self) -> bool:
        abandoned = self._abandoned
        return abandoned is not None and time.monotonic() > abandoned + STOPS

    def _receive(self, overdue: Callable[[], bool] = lambda: False) -> Any:
        try:
            answer = self.process.receive(overdue)
        except (HardwareError, RemoteError):
            self.stop()  # a GPU that failed stays failed for its process, and so may the rest
            raise
        if isinstance(answer, StoppedError):
            raise answer
        return answer
