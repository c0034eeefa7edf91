"""Worker processes of a simulation: shared memory, the jobs of a round, and how both end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch

from fededge.errors import FedEdgeError, MethodError
from fededge.flat import as_tensors
from fededge.methods import Hyper, Private
from fededge.simulation import ProcessExecutor, SerialExecutor, Setup
from fededge.simulation.experiment import Experiment
from fededge.simulation.loop import Simulation
from fededge.simulation.runs import load_setup
from fededge.simulation.shared_memory import ALIGNMENT, EMPTY, Segment, Slot, pack, unpack
from fededge.simulation.workers import batches
from fededge.training import Answer, Task

SMALL = Experiment(method="fedphp", limit=200, devices=6, split="uniform", epochs=1)


def test_only_places_of_tensors_are_sent() -> None:
    """A million numbers, named twice: they lie in the span once, and the message is short."""
    model = torch.arange(1_000_000.0)
    private = Private({"a.kept": torch.ones(3), "a.count": 2})
    packed = pack(Answer(model, {"loss": 1.0}, private, model, 0.5))
    assert len(ForkingPickler.dumps(packed.data)) < 1000
    assert packed.size < model.nbytes + 4 * ALIGNMENT
    span = torch.empty(packed.size, dtype=torch.uint8)
    packed.write(span)
    seen, copied = (unpack(packed.data, span, copy=copy) for copy in (False, True))
    span.zero_()
    assert not seen.upload.any()
    assert copied.upload.equal(model)
    assert copied.personal is copied.upload
    assert copied.private.tensor("a.kept").equal(torch.ones(3))
    assert copied.private.number("a.count") == 2
    assert unpack(pack(SMALL).data, span, copy=False) == SMALL
    nested = {"a": [(1, "b"), Hyper()], "c": Slot(1, 2)}
    assert unpack(pack(nested).data, span, copy=False) == nested


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float16, torch.int64])
def test_any_tensor_is_packed_where_torch_would_put_it(dtype: torch.dtype) -> None:
    given = [torch.zeros(0), torch.tensor(1.0), torch.ones(3, 5).t().to(dtype), torch.zeros(0, 4)]
    packed = pack(given)
    segment = Segment()
    span = segment.span(segment.reserve(EMPTY, packed.size))
    packed.write(span)
    found = unpack(packed.data, span, copy=False)
    assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in given]
    assert all(a.equal(b) for a, b in zip(found, given, strict=True))
    assert {t.data_ptr() % ALIGNMENT for t in found if t.numel()} == {0}


def test_a_slot_that_grows_doubles_and_views_stay_valid() -> None:
    segment = Segment()
    first = segment.reserve(EMPTY, 10_000)
    view = segment.span(first)
    view.fill_(7)
    assert segment.reserve(first, 10_000) == first
    second = segment.reserve(first, first.size + 1)
    assert second == Slot(first.size, 2 * first.size)
    segment.span(second).fill_(8)
    assert set(view.tolist()) == set(segment.span(first).tolist()) == {7}


def test_memory_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FedEdgeError, match=r"cannot share 5 MB more of memory \(No space left"):
        Segment().reserve(EMPTY, 5_000_000)


def test_jobs_join_small_turns_and_become_short() -> None:
    """Twenty equal turns and two workers: a job has a quarter of those that are left."""
    made = batches({f"{number:02}": 65 for number in range(20)}, workers=2, most=99)
    assert [len(batch.keys) for batch in made] == [5, 4, 3, 2, *[1] * 6]
    assert sum((batch.keys for batch in made), ()) == tuple(f"{n:02}" for n in range(20))
    assert [len(batch.keys) for batch in batches(dict.fromkeys("abcd", 9), 2, 1)] == [1] * 4


def test_large_turns_come_first_and_alone() -> None:
    made = batches({"a": 1, "b": 100, "c": 40, "d": 2, "e": 50}, workers=2, most=99)
    assert [batch.keys for batch in made][:3] == [("b",), ("e",), ("c",)]
    assert sum(batch.work for batch in made) == 193


@pytest.fixture(scope="module")
def setup() -> Setup:
    return load_setup(SMALL)


@pytest.fixture(scope="module")
def executor(setup: Setup) -> Iterator[ProcessExecutor]:
    made = ProcessExecutor(setup, 2)
    yield made
    made.stop()


def task_of(setup: Setup, number: int = 0, hyper: Hyper | None = None) -> Task:
    simulation = Simulation(setup)
    sent = as_tensors(simulation.method.send(simulation.method.initial(simulation.layout)))
    return Task(0, number, hyper or setup.hyper, simulation.first, sent)


@pytest.mark.slow
def test_workers_answer_as_one_process_and_their_memory_stays(
    setup: Setup, executor: ProcessExecutor
) -> None:
    """FedPHP's devices keep a model: it goes to the workers and back, round after round."""
    alone, together = SerialExecutor(setup), executor
    private: dict[str, Private] = {}
    sizes = []
    for number in range(4):
        task = task_of(setup, number)
        expected = alone.turns(task, list(setup.devices), private)
        found = together.turns(task, list(setup.devices), private)
        assert list(found) == list(expected)
        for one, other in zip(expected.values(), found.values(), strict=True):
            assert other.upload.equal(one.upload)
            assert other.personal.equal(one.personal)
            assert other.scalars == one.scalars
            assert {k: torch.as_tensor(v).tolist() for k, v in other.private.items()} == {
                k: torch.as_tensor(v).tolist() for k, v in one.private.items()
            }
        private = {device: answer.private for device, answer in found.items()}
        sizes.append(together.segment.end)
    assert any(isinstance(v, torch.Tensor) for p in private.values() for v in p.values())
    assert sizes[2] == sizes[3]


@pytest.mark.slow
def test_answers_stay_as_they_are_in_later_rounds(setup: Setup, executor: ProcessExecutor) -> None:
    devices = list(setup.devices)
    first = executor.turns(task_of(setup, 0), devices, {})
    before = {device: answer.upload.clone() for device, answer in first.items()}
    executor.turns(task_of(setup, 1), devices, {})
    assert all(first[device].upload.equal(before[device]) for device in devices)


@pytest.mark.slow
def test_an_error_is_that_of_one_process_and_the_next_round_runs(
    setup: Setup, executor: ProcessExecutor
) -> None:
    bad, devices = replace(setup.hyper, lr=1e30), list(setup.devices)
    said = []
    for each in (SerialExecutor(setup), executor):
        with pytest.raises(MethodError, match="lower the learning rate") as caught:
            each.turns(task_of(setup, 0, bad), devices, {})
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "in _take" in str(caught.value.__cause__)  # the worker's traceback
    assert len(executor.turns(task_of(setup), devices, {})) == len(devices)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_and_replaced(
    setup: Setup, executor: ProcessExecutor
) -> None:
    devices = list(setup.devices)
    executor.turns(task_of(setup), devices, {})
    children = _children(os.getpid())
    os.kill(children[-1], signal.SIGKILL)
    with pytest.raises(FedEdgeError, match="a worker process died, perhaps out of memory"):
        executor.turns(task_of(setup), devices, {})
    assert len(executor.turns(task_of(setup), devices, {})) == len(devices)


PROGRAM = """
from fededge.simulation import ProcessExecutor
from tests.simulation.test_workers import SMALL, load_setup, task_of

if __name__ == "__main__":
    setup = load_setup(SMALL)
    executor = ProcessExecutor(setup, 2)
    executor.turns(task_of(setup), list(setup.devices), {})
    print("ready", flush=True)
    while True:
        executor.turns(task_of(setup), list(setup.devices), {})
"""


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """And nothing of their memory is left: it never had a name."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"ready\n"
            workers = _children(parent.pid)
            mapped = {Path(f"/proc/{pid}/maps").read_text() for pid in (parent.pid, *workers)}
        finally:
            parent.kill()
    assert len(workers) == 2
    assert all("fededge-simulation (deleted)" in maps for maps in mapped)
    assert not any("/dev/shm" in maps for maps in mapped)
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    ]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
