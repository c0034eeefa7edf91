"""The agent's thread for exports: it waits for the exporter process, and no turn waits for it.

An export may fail here in any way, also by the death of its process: that costs one export and one
line in the log.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fededge._internal.torch_process import RemoteError
from fededge.config import AgentConfig
from fededge.errors import FedEdgeError
from fededge.export import ModelRegistry
from fededge_agent.exports.export_requests import ExportRequest, ModelExporter, PersonalModel
from fededge_agent.exports.promotion import Promotion
from fededge_agent.machine.export_schedule import ExportSchedule, ExportState

__all__ = ["ExportWorker", "StatusChanged"]

log = logging.getLogger("agent")

LAST_EXPORT = 15.0
"""Seconds that a stop waits for the newest model's export: less than systemd waits for the stop."""

FAILED = {"event": "export-failed"}

Job = Callable[[], None]


class StatusChanged:
    """A worker changed something that the status shows: the loop publishes it."""


class ExportWorker:
    """One thread that exports and releases models. The constructor only stores.

    `offer` drops a model that still waits: the newest one counts. `release` comes after the export
    of a model that waits, which is then due at once: a rollout may be about it.
    """

    def __init__(
        self, config: AgentConfig, exporter: ModelExporter, inbox: queue.SimpleQueue[Any]
    ) -> None:
        self.exporter = exporter
        self.inbox = inbox
        models = ModelRegistry(Path(config.state) / "models", config.export.keep)
        self.promotion = Promotion(models, config.device, config.export.margin, exporter.score)
        self._schedule: ExportSchedule[PersonalModel] = ExportSchedule(config.export.interval)
        self._idle = config.hardware.idle
        self._ends = math.inf  # when the exporter is to end
        self._starting = self._releasing = self._stopping = self._overdue = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="exports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Export the model that waits, within bounds, and end the exporter."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(LAST_EXPORT)
        self._overdue = self._thread.is_alive()
        self.exporter.stop()

    # Called by the loop and by the worker

    def turn_began(self) -> None:
        """A turn is about to leave a model: the exporter starts while it is trained."""
        with self._changed:
            self._schedule.turn_began()
            self._starting = True
            self._changed.notify()

    def turn_ended(self) -> None:
        with self._changed:
            self._schedule.turn_ended(time.monotonic())
            self._changed.notify()

    def left(self) -> bool:
        """A turn left a personal model; True if the export is due although the device is busy."""
        with self._changed:
            return self._schedule.left(time.monotonic())

    def offer(self, model: PersonalModel) -> None:
        with self._changed:
            dropped = self._schedule.offer(model, time.monotonic())
            self._changed.notify()
        if dropped is not None:
            dropped.file.unlink(missing_ok=True)

    def release(self) -> None:
        """Promote the newest model that the rollout has reached."""
        with self._changed:
            self._releasing = True
            self._changed.notify()

    # In the thread

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Job | None:
        """The next job; None if the agent stops and no model waits."""
        with self._changed:
            while (job := self._due(time.monotonic())) is None and not self._stopping:
                wakes = min(self._schedule.due_at, self._ends)
                self._changed.wait(min(wakes - time.monotonic(), threading.TIMEOUT_MAX))
            return job

    def _due(self, now: float) -> Job | None:
        waits = self._schedule.state is ExportState.WAITING
        hurried = waits and (self._releasing or self._stopping)
        if hurried or self._schedule.due_at <= now:
            model = self._schedule.begin()
            return lambda: self.export(model)
        if self._releasing:
            self._releasing = False
            return self.release_now
        if self._starting:
            self._starting = False
            return self._start
        if self._ends <= now:
            self._ends = math.inf
            return self.exporter.stop
        return None

    def _start(self) -> None:
        self._do("no exporter was started", self.exporter.start)

    def export(self, model: PersonalModel) -> None:
        """Export a model now."""
        promotion = self.promotion
        with_rollout = ExportRequest(model, promotion.run, promotion.rollout)
        self._do("no personal model was exported", lambda: self.exporter.export(with_rollout))
        model.file.unlink(missing_ok=True)
        promotion.check_rollout()  # it may have changed meanwhile
        self.inbox.put(StatusChanged())
        with self._changed:
            self._schedule.done()

    def release_now(self) -> None:
        self._do("no model was released", self._release)

    def _release(self) -> None:
        if self.promotion.release():
            self.inbox.put(StatusChanged())

    def _do(self, what: str, job: Job) -> None:
        """Do a job; a failure is a line in the log. The exporter ends some time after it."""
        try:
            job()
        except (FedEdgeError, RemoteError) as error:  # a traceback is in the log already
            reason = f"it took longer than {LAST_EXPORT:g} s" if self._overdue else error
            log.error("%s: %s", what, reason, extra=FAILED)
        except Exception:
            log.exception("%s", what, extra=FAILED)
        self._ends = time.monotonic() + self._idle
