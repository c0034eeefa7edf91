"""The agent's worker: what takes long runs in one thread, and answers through the inbox.

So the broker's messages are answered meanwhile. What a state announces may fail here in any way,
and a method may be anybody's: that makes a sentence for the status, and ends nothing.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fededge._internal.plain_text import plain
from fededge.errors import DataError, DiskFullError, FedEdgeError, StoreError, WireError
from fededge.wire.messages import State
from fededge_agent.machine import events
from fededge_agent.machine.events import Pending
from fededge_agent.turn_runner import StoppedError, Work

__all__ = ["Changed", "Failure", "Worker", "line"]

log = logging.getLogger("agent")

MOST_SAID = 1000
"""Characters of a problem in the status."""

LAST_JOB = 10.0
"""Seconds that a stop waits for the worker: an export may finish, a long training may not."""

UNFIT = (
    "the device's data does not fit the labels and inputs that the federation announces: its own "
    "log says why"
)

Job = Callable[[], None]


def line(text: str) -> str:
    """What a status can say: an announced method may be long and wrong, and we quote it."""
    return plain(text, MOST_SAID)


class Changed:
    """The worker changed what the status says: the loop says it."""


class Failure:
    """The worker met an error: the loop raises it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Worker:
    """One thread and its jobs. The constructor only stores; `start` and `stop` do."""

    def __init__(self, work: Work, inbox: queue.SimpleQueue[Any]) -> None:
        self.work = work
        self.inbox = inbox
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join(LAST_JOB)

    # What the loop asks for

    def prepare(self, state: State) -> None:
        self.put(lambda: self._prepare(state))

    def train(self, state: State) -> None:
        self.work.abandon.clear()
        self.put(lambda: self._train(state))

    def abandon(self) -> None:
        """Stop the training that is under way, at its next step."""
        self.work.abandon.set()

    def release(self) -> None:
        self.put(self._release)

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    # In the thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.finish(job)

    def finish(self, job: Job) -> None:
        """Do a job; an error that it lets through is the loop's."""
        try:
            job()
        except FedEdgeError as error:
            self.inbox.put(Failure(error))
        except Exception as error:  # a bug in the worker must stop the agent, not hang it
            log.exception("the worker failed")
            self.inbox.put(Failure(error))

    @contextlib.contextmanager
    def _telling(self, what: str, tell: Callable[[str], None]) -> Iterator[None]:
        """Tell what goes wrong in a sentence; the log has all about what nobody foresaw.

        If a file of our own is damaged, a person must look at it.
        """
        try:
            yield
        except DataError as error:  # it names files and labels, which nobody else need know
            log.error("%s: %s", what, error)
            tell(UNFIT)
        except FedEdgeError as error:
            if isinstance(error, StoreError) and not isinstance(error, DiskFullError):
                raise
            tell(line(str(error)))
        except Exception as error:
            log.exception("%s", what)
            tell(line(f"{what}: {type(error).__name__}: {error}"))

    def _prepare(self, state: State) -> None:
        def unable(why: str) -> None:
            self.inbox.put(events.Unable(state, why))

        with self._telling("the preparation failed", unable):
            self.work.prepare(state)
            self.inbox.put(events.Prepared(state, self.work.most_bytes))

    def _train(self, state: State) -> None:
        def failed(why: str) -> None:
            self.inbox.put(events.TurnFailed(state.version, why))

        log.info("round %d: training from %s", state.round + 1, state.version)
        trained = None
        with self._telling("the training failed", failed):
            try:
                trained = self.work.train(state)
                self.inbox.put(events.Trained(Pending(state.run, state.version)))
            except WireError as error:
                self.inbox.put(events.Spoiled(state.version, str(error)))
            except StoppedError:
                self.inbox.put(events.Abandoned())
        if trained is None:
            return
        with self._telling("the personal model is not made", log.error):
            self.work.follow_up(trained)
        if self.work.exporting is not None:
            self.inbox.put(Changed())

    def _release(self) -> None:
        if self.work.exporting is not None and self.work.promotion.release():
            self.inbox.put(Changed())
