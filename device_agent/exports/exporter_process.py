"""The agent's end of its exporter process: ONNX Runtime is there, at a low priority."""

from __future__ import annotations

import logging
import os
import time

from fededge._internal.torch_process import TorchProcess
from fededge.config import AgentConfig
from fededge_agent.exports.export_requests import ExportRequest, ScoreRequest
from fededge_agent.store import AgentStore
from fededge_agent.store.programs import EXPORTER

__all__ = ["ExporterProcess"]

LONGEST = 600.0
"""Seconds that an export may take; a process that hangs is killed then."""


class ExporterProcess:
    """Starts the exporter process when it is needed, and again after it died. One thread asks.

    The process holds the lock of the agent's folder open, as the trainer process does.
    """

    def __init__(self, config: AgentConfig, store: AgentStore) -> None:
        self.config = config
        self.store = store
        self.process = TorchProcess("the exporter process", EXPORTER)

    def start(self) -> None:
        """Start the process, if it does not run, and return at once."""
        if not self.process.alive:
            self.process.start(os.environ, *self.store.descriptors)
            self.process.send((self.config, logging.getLogger().getEffectiveLevel()))

    def export(self, request: ExportRequest) -> None:
        self._ask(request)

    def score(self, number: int) -> float | None:
        accuracy = self._ask(ScoreRequest(number))
        assert accuracy is None or isinstance(accuracy, float)
        return accuracy

    def stop(self) -> None:
        self.process.stop()

    def _ask(self, request: ExportRequest | ScoreRequest) -> object:
        self.start()
        self.process.send(request)
        deadline = time.monotonic() + LONGEST
        return self.process.receive(lambda: time.monotonic() > deadline)
