"""Who takes the simulated devices' turns: this process, or several that share its data.

Which of them takes a turn changes nothing about it: randomness is fixed by run, round, device and
purpose, and the updates are summed in the order of device ids.
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
from fededge.method.plugins import telling_lines
from fededge.method.teacher import outputs
from fededge.methods import Hyper, Private
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, build_for
from fededge.models.evaluation import class_accuracies, probability_matrix
from fededge.training import Answer, Examples, Task, Trainer, prepare_training

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

__all__ = ["Alone", "Crew", "Setup", "Workers"]


@dataclass(frozen=True, eq=False)
class Setup:
    """What a simulated federation consists of."""

    method: str
    spec: ModelSpec
    hyper: Hyper
    seed: int
    devices: Mapping[str, Examples]
    test_x: Tensor
    test_y: Tensor
    encoding: str = "float32"


class Crew(Protocol):
    """Takes turns for devices, and measures models: on the global test set, class by class
    (`measure`), by the probability matrix of a device's own data (`probabilities`), and the
    personal ones of devices that sit a round out (`refreshed`), if they are new.
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


class Alone:
    """Everything in this process, one turn after the other."""

    def __init__(self, setup: Setup) -> None:
        prepare_training()
        spec = setup.spec
        self.setup = setup
        self.net = FlatModel(build_for(spec, setup.seed))
        self.preprocess = Preprocess(spec)
        self.method = methods.method(setup.method)

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]:
        return {d: self.turn(task, d, private.get(d, Private())) for d in devices}

    def turn(self, task: Task, device: str, private: Private) -> Answer:
        with telling_lines():
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
        return Trainer(device, self.net, self.preprocess, data, self.method)

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
        return probability_matrix(logits, data.y, data.classes)

    def stop(self) -> None:
        """Nothing to end."""


class Workers:
    """Several processes, each with one thread. The data lies in memory that they share."""

    def __init__(self, setup: Setup, count: int) -> None:
        self.setup = _shared(setup)
        # Spawned, not forked: a fork of a process that has used torch's threads may hang.
        self.pool = ProcessPoolExecutor(
            count,
            mp_context=get_context("spawn"),
            initializer=_begin,
            initargs=(self.setup, methods.method(setup.method).files),
        )
        self.jobs: list[Future[Any]] = []

    def turns(
        self, task: Task, devices: Sequence[str], private: Mapping[str, Private]
    ) -> dict[str, Answer]:
        """The largest first, so that no worker is left alone with a long turn at the end."""
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
        """A worker is started when there is something to do for it, and never hears of Ctrl-C."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future = self.pool.submit(job, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.jobs = [*(job for job in self.jobs if not job.done()), future]
        return future

    def stop(self) -> None:
        """End the workers; one in the middle of a turn, which may be long, at once."""
        if not all(job.done() for job in self.jobs):
            for process in list(self.pool._processes.values()):
                process.terminate()
        self.pool.shutdown(cancel_futures=True)


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:
        raise FedEdgeError(
            "a worker process died, perhaps for want of memory; try fewer --workers"
        ) from None


def _shared(setup: Setup) -> Setup:
    """Put the data where other processes can use it without a copy."""
    for tensor in _tensors(setup):
        tensor.share_memory_()
    return setup


def _tensors(setup: Setup) -> Iterator[Tensor]:
    yield from (setup.test_x, setup.test_y)
    for data in setup.devices.values():
        yield from (data.x, data.y, data.held_x, data.held_y)


# What a worker does. Vectors travel as numpy arrays: torch would hold a file open for each.

_asked: tuple[Setup, dict[str, str]] | None = None
_crew: Alone | None = None


def _begin(setup: Setup, files: dict[str, str]) -> None:
    global _asked
    _asked = setup, files


def _mine() -> Alone:
    """This worker's crew, made at its first job: what goes wrong is then that job's error."""
    global _crew
    if _crew is None:
        assert _asked is not None
        setup, files = _asked
        crew = Alone(setup)
        if crew.method.files != files:
            raise MethodError(f"a file of '{setup.method}' has changed since the run began")
        _crew = crew
    return _crew


def _turn(task: dict[str, Any], device: str, private: dict[str, Any]) -> dict[str, Any]:
    answer = _mine().turn(_unpack_task(task), device, Private(_unpack(private)))
    return {
        "upload": answer.upload.numpy(),
        "scalars": answer.scalars,
        "private": _pack(answer.private),
        "personal": answer.personal.numpy(),
        "personal_accuracy": answer.personal_accuracy,
    }


def _refreshed(task: dict[str, Any], device: str, private: dict[str, Any]) -> float | None:
    return _mine().refreshed_one(_unpack_task(task), device, Private(_unpack(private)))


def _measure(model: Vector) -> Any:
    return _mine().measure_one(torch.from_numpy(model)).numpy()


def _probabilities(device: str, model: Vector) -> Any:
    return _mine().probabilities_of(device, torch.from_numpy(model)).numpy()


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
