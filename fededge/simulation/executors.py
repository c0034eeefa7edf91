"""Executors of the simulated devices' turns: this process, or several that share its data.

The executor does not change a result: randomness is seeded by run, round, device and purpose, and
updates are summed in the order of device ids.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing import get_context

from fededge import methods
from fededge.errors import FedEdgeError, MethodError
from fededge.flat import FlatModel
from fededge.hardware import CPU, Hardware
from fededge.method.plugins import plugin_errors
from fededge.method.teacher import outputs
from fededge.methods import Hyper, Private
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, build_for
from fededge.models.evaluation import class_accuracies, probability_matrix
from fededge.training import Answer, Examples, Task, Trainer, prepare_training

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

__all__ = ["Executor", "ProcessExecutor", "SerialExecutor", "Setup"]


@dataclass(frozen=True, eq=False)
class Setup:
    """A simulated federation: method, model, training and data."""

    method: str
    spec: ModelSpec
    hyper: Hyper
    seed: int
    devices: Mapping[str, Examples]
    test_x: Tensor
    test_y: Tensor
    encoding: str = "float32"
    hardware: Hardware = CPU


class Executor(Protocol):
    """Runs devices' turns and measures models.

    `measure` returns accuracies by class on the global test set, `probabilities` the probability
    matrix on a device's own data, `refreshed` the accuracy of the personal models that are new on
    devices that sit the round out.
    """

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]: ...

    def refreshed(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, float]: ...

    def measure(self, models: Sequence[Tensor]) -> list[Tensor]: ...

    def probabilities(self, models: Mapping[str, Tensor]) -> dict[str, Tensor]: ...

    def stop(self) -> None: ...


class SerialExecutor:
    """Runs everything in this process, one turn after the other."""

    def __init__(self, setup: Setup) -> None:
        prepare_training(setup.hardware)
        spec = setup.spec
        self.setup = setup
        place = torch.device(setup.hardware.device)
        self.net = FlatModel(build_for(spec, setup.seed)).to(place)
        self.preprocess = Preprocess(spec).to(place)
        self.method = methods.method(setup.method)

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]:
        return {d: self.turn(task, d, private.get(d, Private())) for d in devices}

    def turn(self, task: Task, device: str, private: Private) -> Answer:
        with plugin_errors():
            return self._trainer(device).turn(task, private)

    def refreshed(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, float]:
        scores = {d: self.refreshed_one(task, d, private[d]) for d in devices}
        return {device: score for device, score in scores.items() if score is not None}

    def refreshed_one(self, task: Task, device: str, private: Private) -> float | None:
        return self._trainer(device).refreshed_accuracy(task, private)

    def _trainer(self, device: str) -> Trainer:
        data = self.setup.devices[device]
        hardware = self.setup.hardware
        return Trainer(device, self.net, self.preprocess, data, self.method, hardware)

    def measure(self, models: Sequence[Tensor]) -> list[Tensor]:
        return [self.measure_one(model) for model in models]

    def measure_one(self, model: Tensor) -> Tensor:
        self.net.load(model)
        x, y = self.setup.test_x, self.setup.test_y
        return class_accuracies(self.net.module, self.preprocess, x, y, self.setup.spec.classes)

    def probabilities(self, models: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {device: self.probabilities_of(device, model) for device, model in models.items()}

    def probabilities_of(self, device: str, model: Tensor) -> Tensor:
        data = self.setup.devices[device]
        logits = outputs(self.net, model, self.preprocess, data.x).logits
        return probability_matrix(logits, data.y.to(logits.device), data.classes).cpu()

    def stop(self) -> None:
        """Do nothing: there are no processes to end."""


class ProcessExecutor:
    """Runs turns in several processes. The data is in shared memory."""

    def __init__(self, setup: Setup, count: int) -> None:
        self.setup = _shared(setup)
        # Spawned, not forked: a fork of a process that has used torch's threads may hang.
        self.pool = ProcessPoolExecutor(
            count,
            mp_context=get_context("spawn"),
            initializer=_store_setup,
            initargs=(self.setup, methods.method(setup.method).files),
        )
        self.jobs: list[Future[Any]] = []

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]:
        """Start the largest turns first, so that no long turn is left at the end."""
        sizes = {device: len(self.setup.devices[device].y) for device in devices}
        packed = _pack_task(task)
        futures = {
            device: self._submit(_turn, packed, device, _pack(private.get(device, Private())))
            for device in sorted(devices, key=lambda device: (-sizes[device], device))
        }
        done = {device: _result(future) for device, future in futures.items()}
        return {device: _unpack_answer(done[device]) for device in devices}

    def refreshed(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, float]:
        packed = _pack_task(task)
        futures = {
            device: self._submit(_refreshed, packed, device, _pack(private[device]))
            for device in devices
        }
        scores = {device: _result(future) for device, future in futures.items()}
        return {device: score for device, score in scores.items() if score is not None}

    def measure(self, models: Sequence[Tensor]) -> list[Tensor]:
        futures = [self._submit(_measure, model.numpy()) for model in models]
        return [torch.from_numpy(_result(future)) for future in futures]

    def probabilities(self, models: Mapping[str, Tensor]) -> dict[str, Tensor]:
        futures = {d: self._submit(_probabilities, d, m.numpy()) for d, m in models.items()}
        return {device: torch.from_numpy(_result(future)) for device, future in futures.items()}

    def _submit(self, job: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a job; a worker process that it starts inherits a blocked SIGINT (Ctrl-C)."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future = self.pool.submit(job, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.jobs = [*(job for job in self.jobs if not job.done()), future]
        return future

    def stop(self) -> None:
        """End the worker processes; terminate those in the middle of a turn."""
        if not all(job.done() for job in self.jobs):
            for process in list(self.pool._processes.values()):
                process.terminate()
        self.pool.shutdown(cancel_futures=True)


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:
        raise FedEdgeError(
            "a worker process died, perhaps out of memory; try fewer --workers"
        ) from None


def _shared(setup: Setup) -> Setup:
    """Move the data to shared memory, where worker processes use it without a copy."""
    for tensor in _tensors(setup):
        tensor.share_memory_()
    return setup


def _tensors(setup: Setup) -> Iterator[Tensor]:
    yield from (setup.test_x, setup.test_y)
    for data in setup.devices.values():
        yield from (data.x, data.y, data.held_x, data.held_y)


# The jobs of a worker process. Vectors travel as numpy arrays: torch would hold a file open for
# each.

_setup: tuple[Setup, dict[str, str]] | None = None
_executor: SerialExecutor | None = None


def _store_setup(setup: Setup, files: dict[str, str]) -> None:
    global _setup
    _setup = setup, files


def _worker_executor() -> SerialExecutor:
    """Return this process's executor; made in the first job, so that its errors are the job's."""
    global _executor
    if _executor is None:
        assert _setup is not None
        setup, files = _setup
        executor = SerialExecutor(setup)
        if executor.method.files != files:
            raise MethodError(f"a file of '{setup.method}' has changed since the run began")
        _executor = executor
    return _executor


def _turn(task: dict[str, Any], device: str, private: dict[str, Any]) -> dict[str, Any]:
    answer = _worker_executor().turn(_unpack_task(task), device, Private(_unpack(private)))
    return {
        "upload": answer.upload.numpy(),
        "scalars": answer.scalars,
        "private": _pack(answer.private),
        "personal": answer.personal.numpy(),
        "personal_accuracy": answer.personal_accuracy,
    }


def _refreshed(task: dict[str, Any], device: str, private: dict[str, Any]) -> float | None:
    return _worker_executor().refreshed_one(_unpack_task(task), device, Private(_unpack(private)))


def _measure(model: Vector) -> Any:
    return _worker_executor().measure_one(torch.from_numpy(model)).numpy()


def _probabilities(device: str, model: Vector) -> Any:
    return _worker_executor().probabilities_of(device, torch.from_numpy(model)).numpy()


def _pack(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.numpy() if isinstance(v, Tensor) else v for k, v in values.items()}


def _unpack(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in values.items()}


def _pack_task(task: Task) -> dict[str, Any]:
    return {
        "seed": task.seed,
        "number": task.number,
        "hyper": task.hyper,
        "received": task.received.numpy(),
        "sent": _pack(task.sent),
        "turns": task.turns,
    }


def _unpack_task(task: dict[str, Any]) -> Task:
    return Task(**{**_unpack(task), "sent": _unpack(task["sent"])})


def _unpack_answer(answer: dict[str, Any]) -> Answer:
    private = Private(_unpack(answer["private"]))
    return Answer(**{**_unpack(answer), "private": private})
