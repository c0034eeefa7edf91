"""The agent's worker: one thread for long jobs; results go to the inbox.

The loop answers the broker meanwhile. An announced job may fail here in any way, and a method may
be third-party code: a failure becomes one sentence in the status, and does not end the agent.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fededge._internal.torch_process import RemoteError
from fededge.errors import (
    DataError,
    DiskFullError,
    FedEdgeError,
    HardwareError,
    ProcessDiedError,
    StoreError,
    WireError,
)
from fededge.wire.messages import State
from fededge_agent.exports.export_worker import ExportWorker
from fededge_agent.machine import events
from fededge_agent.machine.events import Cause, Pending
from fededge_agent.requests import StoppedError
from fededge_agent.status import one_line
from fededge_agent.turn_runner import TurnRunner

__all__ = ["Worker", "WorkerFailed"]

log = logging.getLogger("agent")

LAST_JOB = 10.0
"""Seconds that a stop waits for the worker: it does not wait for a long training."""

PAUSE = 0.25
"""Seconds without a job after a turn: then it is followed up."""

UNFIT = (
    "the device's data does not fit the labels and inputs that the federation announces: its own "
    "log says why"
)

Job = Callable[[], None]


class WorkerFailed:
    """The worker met an error that the loop must raise."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Worker:
    """One thread and its jobs. The constructor only stores; `start` and `stop` do.

    A turn is followed up by the handover of its personal model to the exporter and by its metrics:
    when no other job has come for a moment, and at intervals while turns follow each other at once.
    """

    def __init__(
        self, runner: TurnRunner, exports: ExportWorker, inbox: queue.SimpleQueue[Any]
    ) -> None:
        self.runner = runner
        self.exports = exports
        self.inbox = inbox
        self.busy = False
        self._put_off: list[Job] = []
        self._measured = -math.inf
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join(LAST_JOB)
        self.runner.stop()

    # Called by the loop

    def prepare(self, state: State) -> None:
        self.put(lambda: self._prepare(state))

    def train(self, state: State) -> None:
        self.runner.expect()
        self.exports.turn_began()
        self.put(lambda: self._turn(state))

    def abandon(self) -> None:
        """Stop the training that is under way, at its next step."""
        self.runner.abandon()

    def warm_up(self) -> None:
        """A turn is about to come: get ready for it while its model is downloaded."""
        self.put(self.runner.warm_up)

    def release(self) -> None:
        """Release a model that the rollout has reached, once the last turn has left its own."""
        self.put(self._release)

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    # In the thread

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self.finish(job)
        self.finish(self._follow_up)

    def _next(self) -> Job | None:
        """The next job; the trainer ends if there is none for a while."""
        if self._put_off:
            with contextlib.suppress(queue.Empty):
                return self._jobs.get(timeout=PAUSE)
            self.finish(self._follow_up)
        try:
            return self._jobs.get(timeout=self.runner.config.hardware.idle)
        except queue.Empty:
            self.runner.stop()
            return self._jobs.get()

    def finish(self, job: Job) -> None:
        """Do a job; the loop raises any error that escapes it."""
        self.busy = True
        try:
            job()
        except FedEdgeError as error:
            self.inbox.put(WorkerFailed(error))
        except Exception as error:  # a bug in the worker must stop the agent, not hang it
            log.exception("the worker failed")
            self.inbox.put(WorkerFailed(error))
        finally:
            self.busy = False

    @contextlib.contextmanager
    def _telling(self, what: str, tell: Callable[[str, Exception], None]) -> Iterator[None]:
        """Report a failure in one sentence; an unexpected one goes to the log with its traceback.

        A damaged file of our own is raised: a person must look at it.
        """
        try:
            yield
        except DataError as error:  # names files and labels: for this device's log only
            log.error("%s: %s", what, error, extra={"event": "data-unfit"})
            tell(error.public or UNFIT, error)
        except FedEdgeError as error:
            if isinstance(error, StoreError) and not isinstance(error, DiskFullError):
                raise
            tell(one_line(str(error)), error)
        except RemoteError as error:  # its traceback is in the log already
            tell(one_line(f"{what}: {error}"), error)
        except Exception as error:
            log.exception("%s", what, extra={"event": "job-failed"})
            tell(one_line(f"{what}: {type(error).__name__}: {error}"), error)

    def _prepare(self, state: State) -> None:
        def unable(why: str, error: Exception) -> None:
            self.inbox.put(events.Unable(state, why, _cause(error)))

        self._follow_up()  # the trainer is about to forget the last turn
        with self._telling("the preparation failed", unable):
            self.runner.prepare(state)
            self.inbox.put(events.Prepared(state, self.runner.most_bytes))

    def _turn(self, state: State) -> None:
        self._put_off = []
        try:
            self._train(state)
        finally:
            self.exports.turn_ended()

    def _train(self, state: State) -> None:
        def failed(why: str, _: Exception) -> None:
            self.inbox.put(events.TurnFailed(why))

        log.info("round %d: training from %s", state.round + 1, state.version)
        trained = False
        with self._telling("the training failed", failed):
            self.runner.wake(state)
            try:
                self.runner.train(state)
                trained = True
                self.inbox.put(events.Trained(Pending(state.run, state.version)))
            except WireError as error:
                self.inbox.put(events.Spoiled(state.version, str(error)))
            except StoppedError:
                self.inbox.put(events.Abandoned())
        if trained:
            self._after_turn()

    def _after_turn(self) -> None:
        """Follow a turn up: at once with what is due, with the rest when no turn follows."""
        due_at = self._measured + self.runner.config.export.interval
        jobs = {self._hand_over: self.exports.left(), self._measure: time.monotonic() >= due_at}
        self._put_off = [job for job, due in jobs.items() if not due]
        for job, due in jobs.items():
            if due:
                job()

    def _follow_up(self) -> None:
        jobs, self._put_off = self._put_off, []
        for job in jobs:
            job()

    def _hand_over(self) -> None:
        with self._telling("no personal model was made", _log):
            model = self.runner.hand_over()
            if model is not None:
                self.exports.offer(model)

    def _measure(self) -> None:
        with self._telling("the turn was not measured", _log):
            self.runner.measure()
        self._measured = time.monotonic()

    def _release(self) -> None:
        self._follow_up()
        if self.runner.job is not None:
            self.exports.release()


def _cause(error: Exception) -> Cause:
    if isinstance(error, DataError):
        return Cause.DATA
    if isinstance(error, DiskFullError):
        return Cause.DISK
    return Cause.BOX if isinstance(error, (HardwareError, ProcessDiedError)) else Cause.JOB


def _log(why: str, _: Exception) -> None:
    log.error("%s", why, extra={"event": "job-failed"})
