"""The executor that runs turns in several processes, which share data and vectors in memory."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fededge import methods
from fededge.methods import Private
from fededge.simulation.executors import Setup
from fededge.simulation.shared_memory import EMPTY, Segment, pack, tensor_at
from fededge.simulation.worker import CallFailure, SharedValue
from fededge.simulation.worker_process import CallGroup, Calls, WorkerProcess
from fededge.training import Answer, Task, prepare_training

__all__ = ["ProcessExecutor"]

JOB_BYTES = 4 << 20
"""Size of the models in a job that joins turns; larger models travel one by one."""


class ProcessExecutor:
    """Runs turns in several processes. Data and vectors lie in shared memory."""

    def __init__(self, setup: Setup, count: int) -> None:
        prepare_training(setup.hardware)
        self.setup = setup
        self.segment = Segment()
        self.common = EMPTY
        packed = pack(setup)
        slot = self.segment.reserve(EMPTY, packed.size)
        packed.write(self.segment.span(slot))
        for place, tensor in packed.tensors:  # moved, as by Tensor.share_memory_(): no second copy
            tensor.data = tensor_at(place, self.segment.span(slot))
        message, files = SharedValue(packed.data, slot), methods.method(setup.method).files
        self.workers = [WorkerProcess(self.segment, message, files) for _ in range(count)]

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]:
        calls = {device: (device, private.get(device, Private())) for device in devices}
        return self._on_devices("turn", task, calls)

    def refreshed(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, float]:
        calls = {device: (device, private[device]) for device in devices}
        scores = self._on_devices("refreshed_one", task, calls)
        return {device: score for device, score in scores.items() if score is not None}

    def _on_devices(self, method: str, task: Task, calls: Calls) -> dict[str, Any]:
        work = {device: len(self.setup.devices[device].y) + 1 for device in calls}
        most = max(1, JOB_BYTES // task.received.nbytes)
        jobs = batches(work, len(self.workers), most)
        return self._results(method, (task,), calls, jobs)

    def measure(self, models: Sequence[Tensor]) -> list[Tensor]:
        calls = {index: (model,) for index, model in enumerate(models)}
        return list(self._one_by_one("measure_one", calls).values())

    def probabilities(self, models: Mapping[str, Tensor]) -> dict[str, Tensor]:
        calls = {device: (device, model) for device, model in models.items()}
        return self._one_by_one("probabilities_of", calls)

    def _one_by_one(self, method: str, calls: Calls) -> dict[Any, Any]:
        return self._results(method, (), calls, [CallGroup((key,), 1) for key in calls])

    def _results(
        self, method: str, common: tuple[Any, ...], calls: Calls, jobs: Sequence[CallGroup]
    ) -> dict[Any, Any]:
        """Make calls in the worker processes; return their results in the order of the calls."""
        packed = pack(common)
        self.common = self.segment.reserve(self.common, packed.size)
        packed.write(self.segment.span(self.common))
        message, waiting = SharedValue(packed.data, self.common), deque(jobs)
        done: dict[Any, Any] = {}
        try:
            while waiting or any(worker.sent for worker in self.workers):
                worker = min(self.workers, key=lambda worker: worker.work)
                if waiting and worker.free:
                    worker.send(method, message, calls, waiting.popleft())
                    continue
                done |= self._received()
                waiting = before_failure(waiting, list(calls), done)
        except BaseException:  # Ctrl-C, too: no answer may reach a later call
            self.stop()
            raise
        return {key: value_of(done[key]) for key in calls}

    def _received(self) -> dict[Any, Any]:
        """Wait for answers; return those that have come."""
        waiting = select.poll()
        by_file = {worker.file: worker for worker in self.workers if worker.sent}
        for file in by_file:
            waiting.register(file, select.POLLIN)
        found: dict[Any, Any] = {}
        for file, _ in waiting.poll():
            found |= by_file[file].receive()
        return found

    def stop(self) -> None:
        """End the worker processes, also in the middle of a turn."""
        for worker in self.workers:
            worker.stop()


def batches(work: Mapping[str, int], workers: int, most: int) -> list[CallGroup]:
    """Join turns to jobs of at most `most` turns, the largest turns first.

    A job has half of a worker's share of what is left. So there are few jobs, and the last ones
    are short: all workers end at about the same time.
    """
    left = sum(work.values())
    found: list[CallGroup] = []
    enough = 0.0
    for key in sorted(work, key=lambda key: (-work[key], key)):
        last = found[-1] if found else CallGroup((), 0)
        if last.work + work[key] / 2 < enough and len(last.keys) < most:
            found[-1] = CallGroup((*last.keys, key), last.work + work[key])
        else:
            enough = left / (2 * workers)
            found.append(CallGroup((key,), work[key]))
        left -= work[key]
    return found


def before_failure(
    waiting: deque[CallGroup], keys: Sequence[Any], done: Mapping[Any, Any]
) -> deque[CallGroup]:
    """After a failure, keep only calls that come before it.

    So the error is that of one process, which makes the calls in their order.
    """
    failed = [key for key in keys if isinstance(done.get(key), CallFailure)]
    if not failed:
        return waiting
    earlier = set(keys[: keys.index(failed[0])])
    return deque(batch for batch in waiting if earlier.intersection(batch.keys))


def value_of(result: Any) -> Any:
    if isinstance(result, CallFailure):
        raise result.error from WorkerError(result.trace)
    return result


class WorkerError(Exception):
    """The cause of an error that a worker process reports: its traceback there."""
