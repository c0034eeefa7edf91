"""A worker process as its parent sees it: started with its first job, fed by a pipe."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fededge.errors import FedEdgeError
from fededge.simulation.shared_memory import EMPTY, Segment, Slot, pack
from fededge.simulation.worker import SharedValue, WorkerJob, serve

__all__ = ["CallGroup", "Calls", "WorkerProcess"]

LANES = 2
"""Jobs that a process has at a time: when one ends, the next is there already."""


Calls = Mapping[Any, tuple[Any, ...]]
"""The arguments of each call, by the key of its result."""


@dataclass(frozen=True)
class CallGroup:
    """The calls of one job, by their keys, and an estimate of their work."""

    keys: tuple[Any, ...]
    work: int


@dataclass
class Lane:
    """The slots of one job: its arguments, and its answers."""

    calls: Slot = EMPTY
    answers: Slot = EMPTY


class WorkerProcess:
    """A process that runs jobs one by one. The constructor only stores."""

    def __init__(self, segment: Segment, setup: SharedValue, files: dict[str, str]) -> None:
        self.segment = segment
        self.setup = setup
        self.files = files
        self.free = [Lane() for _ in range(LANES)]
        self.sent: deque[tuple[Lane, CallGroup]] = deque()
        self.pipe: Connection | None = None

    @property
    def work(self) -> int:
        """An estimate of the work that it has not answered yet."""
        return sum(batch.work for _, batch in self.sent)

    @property
    def pid(self) -> int | None:
        """The process id; None if it has not started."""
        return None if self.pipe is None else self._process.pid

    @property
    def file(self) -> int:
        """The file that is readable when answers have come."""
        assert self.pipe is not None
        return self.pipe.fileno()

    def send(self, method: str, common: SharedValue, calls: Calls, batch: CallGroup) -> None:
        """Give it a job; it needs a free lane."""
        pipe = self.pipe or self._start()
        lane = self.free.pop()
        packed = pack([calls[key] for key in batch.keys])
        lane.calls = self.segment.reserve(lane.calls, packed.size)
        packed.write(self.segment.span(lane.calls))
        job = WorkerJob(method, common, SharedValue(packed.data, lane.calls), lane.answers)
        try:
            pipe.send(job)
        except ConnectionError:
            _died()
        self.sent.append((lane, batch))

    def receive(self) -> dict[Any, Any]:
        """Return the results of the oldest job by their keys; wait for them."""
        assert self.pipe is not None
        try:
            message: SharedValue = self.pipe.recv()
        except (EOFError, ConnectionError):
            _died()
        answers = message.load(self.segment, copy=True)
        lane, batch = self.sent.popleft()
        lane.answers = self.segment.reserve(lane.answers, message.needed)
        self.free.append(lane)
        return dict(zip(batch.keys, answers, strict=True))

    def _start(self) -> Connection:
        # Spawned, not forked: a fork of a process that has used torch's threads may hang.
        spawn = get_context("spawn")
        self.pipe, inner = spawn.Pipe()
        arguments = inner, self.segment, self.setup, self.files
        self._process = spawn.Process(target=serve, args=arguments, daemon=True)
        # It inherits the blocked SIGINT: Ctrl-C is for this process, which then ends the others.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        inner.close()
        return self.pipe

    def stop(self) -> None:
        """End the process, also in the middle of a turn; the next job starts a new one."""
        if self.pipe is None:
            return
        self._process.terminate()
        self._process.join()
        self.pipe.close()
        self.pipe = None
        self.free += [lane for lane, _ in self.sent]
        self.sent.clear()


def _died() -> NoReturn:
    raise FedEdgeError(
        "a worker process died, perhaps out of memory; try fewer --workers"
    ) from None
