"""The program of a worker process: it takes jobs from a pipe until its parent is gone."""

from __future__ import annotations

import os
import threading
import traceback
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from fededge.errors import FedEdgeError, MethodError
from fededge.simulation.executors import SerialExecutor, Setup
from fededge.simulation.shared_memory import EMPTY, Segment, Slot, pack, unpack

__all__ = ["CallFailure", "SharedValue", "WorkerJob", "serve"]


@dataclass(frozen=True)
class SharedValue:
    """A packed object, and the slot in which its tensors lie.

    `needed` is the size of its tensors. If they do not fit the slot, they are in `inline`.
    """

    data: Any
    slot: Slot
    needed: int = 0
    inline: bytes | None = None

    def load(self, segment: Segment, *, copy: bool) -> Any:
        if self.inline is None:
            return unpack(self.data, segment.span(self.slot), copy=copy)
        return unpack(
            self.data, torch.frombuffer(bytearray(self.inline), dtype=torch.uint8), copy=False
        )


@dataclass(frozen=True)
class WorkerJob:
    """Calls of one method of a `SerialExecutor`, their arguments, and a slot for the results."""

    method: str
    common: SharedValue
    calls: SharedValue
    answers: Slot


@dataclass(frozen=True)
class CallFailure:
    """An error of a call, and its traceback in the worker process."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> CallFailure:
        trace = "".join(traceback.format_exception(error))
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:  # noqa: BLE001  # an error of a plugin that cannot travel
            error = FedEdgeError(f"{type(error).__name__}: {error}")
        return cls(error, trace)


def serve(pipe: Connection, segment: Segment, setup: SharedValue, files: dict[str, str]) -> None:
    """Take jobs until the parent closes the pipe; end at once if it dies."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker = _Worker(segment, setup, files)
    try:
        while True:
            pipe.send(worker.answer(pipe.recv()))
    except (EOFError, ConnectionError):
        return


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class _Worker:
    def __init__(self, segment: Segment, setup: SharedValue, files: dict[str, str]) -> None:
        self.segment = segment
        self.setup = setup
        self.files = files
        self._executor: SerialExecutor | None = None

    def answer(self, job: WorkerJob) -> SharedValue:
        """Make the calls; pack their results into the job's slot."""
        common = job.common.load(self.segment, copy=False)
        calls = job.calls.load(self.segment, copy=False)
        packed = pack([self._call(job.method, (*common, *call)) for call in calls])
        if packed.size <= job.answers.size:
            packed.write(self.segment.span(job.answers))
            return SharedValue(packed.data, job.answers, packed.size)
        inline = torch.empty(packed.size, dtype=torch.uint8)
        packed.write(inline)
        return SharedValue(packed.data, EMPTY, packed.size, inline.numpy().tobytes())

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(self._ready(), method)(*arguments)
        except Exception as error:  # noqa: BLE001  # it is raised in the parent
            return CallFailure.of(error)

    def _ready(self) -> SerialExecutor:
        """Return this process's executor; made in the first call, so that its errors are told."""
        if self._executor is None:
            setup: Setup = self.setup.load(self.segment, copy=False)
            executor = SerialExecutor(setup)
            if executor.method.files != self.files:
                raise MethodError(f"a file of '{setup.method}' has changed since the run began")
            self._executor = executor
        return self._executor
