"""The trainer process: it may die at any moment, and costs the agent one turn at most."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fededge.config import AgentConfig, DataConfig, HardwareConfig
from fededge.errors import ConfigError, MethodError, StoreError
from fededge.methods import method
from fededge.wire.messages import Training
from fededge_agent import trainer_process
from fededge_agent.agent import Agent, Surroundings
from fededge_agent.machine.events import Abandoned, Trained, TurnFailed
from fededge_agent.store import AgentStore
from fededge_agent.trainer_process import TrainerProcess
from tests.device_agent.test_turn_runner import HERE, Device
from tests.trainers import exists, soon

pytestmark = pytest.mark.slow

ENDLESS = Training(10_000, 8, 0.01, 0.0, 0.0)
SHORT = Training(1, 8, 0.01, 0.0, 0.0)
ROOT = Path(__file__).parents[2]
THERE = Surroundings()

PLUGIN = """
import os, sys
from fededge.methods import Method
from dataclasses import dataclass

@dataclass(frozen=True)
class {name}(Method):
    name = "{lower}"

    def phases(self, turn):
        {body}
        return super().phases(turn)
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Callable[..., Device]]:
    made: list[Device] = []

    def make(around: Surroundings = THERE, **announced: Any) -> Device:
        made.append(Device(tmp_path / str(len(made)), around, **announced))
        made[-1].receive(made[-1].data, made[-1].state.version)
        return made[-1]

    yield make
    for each in made:
        each.agent.close()


def trainer(box: Device) -> TrainerProcess:
    found = box.runner.trainer
    assert isinstance(found, TrainerProcess)
    return found


def begin(box: Device) -> threading.Thread:
    """Train in a thread, as the worker does; return once the training is under way."""
    box.agent.worker.runner.expect()
    thread = threading.Thread(target=box.agent.worker._train, args=(box.state,))
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    return thread


def update_of(box: Device) -> bytes:
    turn = box.store.index.turn
    assert turn is not None
    return (box.store.folder / turn.update.name).read_bytes()


def take(box: Device) -> bytes:
    """A whole turn; its update."""
    box.agent.worker._train(box.state)
    assert isinstance(box.answer(), Trained)
    update = update_of(box)
    box.store.settle(accepted=True)
    return update


def test_a_turn_gives_the_same_bits_there_as_here_and_after_a_rest(
    box: Callable[..., Device],
) -> None:
    here, there = box(HERE, training=SHORT), box(training=SHORT)
    first = take(here), take(there)
    assert first[0] == first[1]
    there.runner.stop()
    assert trainer(there).process.pid is None
    assert there.runner.examples == here.runner.examples  # the facts stay
    there.runner.warm_up()
    assert take(here) == take(there)
    there.agent.worker._follow_up()
    there.agent.exports.start()
    there.agent.exports.stop()  # the newest model is exported first
    assert (there.store.folder.parent / "models" / "current" / "model.onnx").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_trainer_that_is_killed_fails_one_turn_with_the_reason(
    box: Callable[..., Device], number: signal.Signals
) -> None:
    device = box(training=ENDLESS)
    files = sorted(path.name for path in device.store.folder.iterdir())
    for _ in range(2):
        thread = begin(device)
        pid = trainer(device).process.pid
        assert pid is not None
        os.kill(pid, number)
        thread.join(30)
        failed = device.answer()
        assert isinstance(failed, TurnFailed)
        assert f"the trainer process was killed by signal {number.value}" in failed.reason
        assert ("enough memory?" in failed.reason) == (number == signal.SIGKILL)
        assert sorted(path.name for path in device.store.folder.iterdir()) == files
    thread = begin(device)  # the next one works
    device.agent.worker.abandon()
    thread.join(60)
    assert device.answer() == Abandoned()


def test_a_trainer_that_hangs_is_killed_some_time_after_its_turn_was_abandoned(
    box: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "STOPS", 1.0)
    device = box(training=ENDLESS)
    thread = begin(device)
    pid = trainer(device).process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    device.agent.worker.abandon()
    thread.join(30)
    assert device.answer() == Abandoned()
    assert not exists(pid)


def test_a_training_is_abandoned_there_too_also_before_it_has_begun(
    box: Callable[..., Device],
) -> None:
    device = box(training=ENDLESS)
    device.agent.worker.runner.expect()
    device.agent.worker.abandon()  # the worker has not come to it yet
    device.agent.worker._train(device.state)
    assert device.answer() == Abandoned()
    assert device.store.index.turn is None


def test_an_idle_time_ends_the_trainer_and_the_next_turn_starts_one(tmp_path: Path) -> None:
    device = Device(tmp_path, THERE, training=SHORT, hardware=HardwareConfig(idle=0.2))
    device.receive(device.data, device.state.version)
    worker, process = device.agent.worker, trainer(device).process
    worker.start()
    try:
        assert soon(lambda: process.pid is None)
        worker.train(device.state)
        assert isinstance(device.agent.loop.inbox.get(timeout=60), Trained)
        assert soon(lambda: process.pid is None)
    finally:
        worker.stop()
        device.agent.close()


def plugin(folder: Path, name: str, body: str) -> str:
    path = folder / f"{name.lower()}.py"
    path.write_text(PLUGIN.format(name=name, lower=name.lower(), body=body))
    return f"{path}:{name}"


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("Raises", "raise ValueError('no luck')", "the training failed: ValueError: no luck"),
        ("Leaves", "os._exit(3)", "the trainer process ended with exit code 3"),
        ("Exits", "sys.exit(4)", "the trainer process ended with exit code 4"),
        ("Prints", "print('hello', flush=True); os.write(1, b'raw')", ""),
    ],
)
def test_a_plugin_cannot_confuse_the_protocol(
    box: Callable[..., Device], tmp_path: Path, name: str, body: str, reason: str
) -> None:
    reference = plugin(tmp_path, name, body)
    stack = method(f"fedavg+{reference}")
    announced = {"method": str(stack), "files": stack.files, "training": SHORT}
    device = box(allowed=(reference,), **announced)
    for _ in range(2):
        device.agent.worker._train(device.state)
        answer = device.answer()
        if reason:
            assert answer == TurnFailed(reason)
        else:
            assert isinstance(answer, Trained)
            device.store.settle(accepted=True)


def test_an_unexpected_error_ends_the_trainer_and_the_next_turn_has_a_new_one(
    box: Callable[..., Device], tmp_path: Path
) -> None:
    """Its leftovers (half a network, a GPU in an unknown state) are gone with it."""
    mark = tmp_path / "failed"
    body = f"""
        mark = {str(mark)!r}
        if not os.path.exists(mark):
            open(mark, "w").close()
            raise RuntimeError("no luck")"""
    reference = plugin(tmp_path, "Once", body)
    stack = method(f"fedavg+{reference}")
    device = box(allowed=(reference,), method=str(stack), files=stack.files, training=SHORT)
    first = trainer(device).process.pid
    assert first is not None
    device.agent.worker._train(device.state)
    assert device.answer() == TurnFailed("the training failed: RuntimeError: no luck")
    assert not exists(first)
    assert not trainer(device).prepared
    take(device)
    assert trainer(device).process.pid not in (None, first)


def agent_config(state: Path, **more: Any) -> AgentConfig:
    data = DataConfig(source="embedded")
    return AgentConfig(federation="gates", device="box", state=str(state), data=data, **more)


def test_a_plugin_that_cannot_be_imported_is_an_error_at_the_start(tmp_path: Path) -> None:
    """With no process left behind, and before the broker is asked for anything."""
    allowed = (f"{tmp_path / 'none.py'}:Gone",)
    config = agent_config(tmp_path, methods=allowed)
    agent = Agent(config)
    with pytest.raises(MethodError, match=r"none\.py"):
        agent.run()
    assert isinstance(agent.runner.trainer, TrainerProcess)
    assert agent.runner.trainer.process.pid is None


def test_a_device_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    hardware = HardwareConfig(device="cuda:99")
    config = agent_config(tmp_path, hardware=hardware)
    with pytest.raises(ConfigError, match="cuda:99") as caught:
        Agent(config).run()
    assert caught.value.exit_code == 2


KILLED_AGENT = """
import sys, threading
from pathlib import Path
from tests.device_agent.test_trainer_process import *
box = Device(Path(sys.argv[1]), THERE, training=ENDLESS)
box.receive(box.data, box.state.version)
begin(box)
exporter = box.agent.exports.exporter
exporter.start()
print(trainer(box).process.pid, exporter.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """An agent in mid-training, and its children: trainer and exporter."""
    program = [sys.executable, "-c", KILLED_AGENT, str(tmp_path)]
    pipe = subprocess.PIPE
    # In a session of its own: the kernel continues stopped processes that lose their terminal's.
    with subprocess.Popen(
        program, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, start_new_session=True
    ) as made:
        assert made.stdout is not None
        try:
            yield made, [int(pid) for pid in made.stdout.readline().split()]
        finally:
            made.kill()


def test_a_killed_agent_takes_its_children_with_it(
    tmp_path: Path, agent: tuple[subprocess.Popen[str], list[int]]
) -> None:
    """They never write again, and the next agent opens the folder at once."""
    process, children = agent
    assert all(map(exists, children))
    process.kill()
    process.wait()
    assert soon(lambda: not any(map(exists, children)), 5.0)
    store = AgentStore(tmp_path)
    store.open()
    names = sorted(path.name for path in store.folder.iterdir())
    assert [name for name in names if re.match(r"\.?\d\.", name)] == []
    store.close()


def test_children_of_a_dead_agent_that_cannot_end_are_killed_by_the_next_one(
    tmp_path: Path,
    agent: tuple[subprocess.Popen[str], list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    process, children = agent
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    assert all(map(exists, children))
    store = AgentStore(tmp_path)
    store.open()
    store.close()
    assert soon(lambda: not any(map(exists, children)), 5.0)
    for pid, name in zip(children, ("trainer", "exporter"), strict=True):
        assert f"killing the {name} process {pid} of a dead agent" in caplog.text


def test_an_agent_that_lives_keeps_its_folder_and_its_stopped_children(
    tmp_path: Path,
    agent: tuple[subprocess.Popen[str], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, children = agent
    for pid in (*children, process.pid):
        os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("fededge_agent.store.folder_lock.ENDS", 0.0)
    monkeypatch.setattr("fededge_agent.store.folder_lock.LOCK_WAIT", 1.0)
    with pytest.raises(StoreError, match="another agent uses this state folder"):
        AgentStore(tmp_path).open()
    assert all(map(exists, (*children, process.pid)))


def test_the_folder_stays_locked_while_a_trainer_lives(
    box: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is closed is no dead agent: whoever started the trainer still runs."""
    monkeypatch.setattr("fededge_agent.store.folder_lock.ENDS", 0.0)
    monkeypatch.setattr("fededge_agent.store.folder_lock.LOCK_WAIT", 0.1)
    device = box(training=SHORT)
    device.store.close()
    second = AgentStore(device.store.folder.parent)
    with pytest.raises(StoreError, match="another agent uses this state folder"):
        second.open()
    device.runner.stop()
    second.open()
    second.close()
