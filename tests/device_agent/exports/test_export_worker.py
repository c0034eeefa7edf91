"""The export worker: no turn waits for it, and the exporter may die at any moment."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fededge.config import AgentConfig, ExportConfig, HardwareConfig
from fededge.errors import ExportError, ProcessDiedError
from fededge.export import ModelRegistry, Origin, Template
from fededge.models import build_for
from fededge_agent.agent import Surroundings
from fededge_agent.exports.export_requests import ExportRequest, PersonalModel
from fededge_agent.exports.export_worker import ExportWorker, StatusChanged
from fededge_agent.exports.exporter_process import ExporterProcess
from fededge_agent.exports.promotion import Promotion
from fededge_agent.exports.significance import Right
from fededge_agent.trainer.turns import DeviceTurns
from fededge_agent.worker import Worker
from tests.device_agent.test_turn_runner import MODEL, STATE, Device
from tests.trainers import maps_torch, soon

EXPORTER = Surroundings(trainer=lambda config, store: DeviceTurns(config))
"""Torch is in this process already; the exporter is a process."""

ORIGIN = Origin(
    federation="gates",
    device="box",
    method="fedavg",
    run="run",
    version="000000-0123456789abcdef",
    round=0,
    accuracy=None,
    created=datetime(2026, 1, 1, tzinfo=timezone.utc),
)


@dataclass
class FakeExporter:
    """Notes what it is asked for; `gate` holds an export up, `failure` makes it fail."""

    asked: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None
    stops: int = 0

    def start(self) -> None: ...

    def export(self, request: ExportRequest) -> None:
        assert request.model.file.exists()
        self.asked.append(request.model.file.name)
        self.gate.wait(30)
        if self.failure is not None:
            raise self.failure

    def score(self, model: int | bytes) -> Right | None:
        raise AssertionError(model)

    def stop(self) -> None:
        self.stops += 1


def config(folder: Path, interval: float = 0.0, idle: float = 300.0) -> AgentConfig:
    return AgentConfig(
        federation="gates",
        device="box",
        state=str(folder),
        export=ExportConfig(interval=interval),
        hardware=HardwareConfig(idle=idle),
    )


@pytest.fixture
def exporter() -> Iterator[FakeExporter]:
    made = FakeExporter()
    yield made
    made.gate.set()


def model(folder: Path, name: str) -> PersonalModel:
    (folder / name).touch()
    return PersonalModel(folder / name, folder / "template", ORIGIN)


def worker(folder: Path, exporter: FakeExporter, **settings: float) -> ExportWorker:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = ExportWorker(config(folder, **settings), exporter, inbox)
    made.start()
    return made


def test_an_older_model_that_waits_is_dropped_with_its_file(
    tmp_path: Path, exporter: FakeExporter
) -> None:
    exports = worker(tmp_path, exporter)
    exports.offer(model(tmp_path, "1"))
    assert soon(lambda: exporter.asked == ["1"])
    for name in ("2", "3", "4"):  # the first one is still under way
        exports.offer(model(tmp_path, name))
    exporter.gate.set()
    exports.stop()
    assert exporter.asked == ["1", "4"]
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_stop_exports_the_model_that_waits_and_ends_the_exporter(
    tmp_path: Path, exporter: FakeExporter
) -> None:
    exporter.gate.set()
    exports = worker(tmp_path, exporter, interval=1000.0)
    exports.turn_began()  # a device that is busy
    exports.offer(model(tmp_path, "1"))
    exports.stop()
    assert exporter.asked == ["1"]
    assert exporter.stops == 1


def test_a_release_comes_after_the_export_of_the_model_that_waits(
    tmp_path: Path, exporter: FakeExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the device would answer that it has no model for the rollout."""
    order: list[str] = []

    def release(_: Promotion) -> bool:
        order.extend(exporter.asked)
        return True

    monkeypatch.setattr(Promotion, "release", release)
    exporter.gate.set()
    exports = worker(tmp_path, exporter, interval=1000.0)
    exports.turn_began()
    exports.offer(model(tmp_path, "1"))
    exports.release()
    assert soon(lambda: order == ["1"])
    assert isinstance(exports.inbox.get(timeout=5), StatusChanged)
    exports.stop()


@pytest.mark.parametrize("failure", [ProcessDiedError("it was killed"), ValueError("a bug")])
def test_a_failed_export_is_a_line_in_the_log_and_the_next_one_is_made(
    tmp_path: Path,
    exporter: FakeExporter,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
) -> None:
    exporter.gate.set()
    exporter.failure = failure
    exports = worker(tmp_path, exporter)
    exports.offer(model(tmp_path, "1"))
    assert soon(lambda: not (tmp_path / "1").exists())
    exporter.failure = None
    exports.offer(model(tmp_path, "2"))
    exports.stop()
    assert exporter.asked == ["1", "2"]
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "no personal model was exported"
    ]


def test_the_exporter_ends_when_it_is_idle(tmp_path: Path, exporter: FakeExporter) -> None:
    exporter.gate.set()
    exports = worker(tmp_path, exporter, idle=0.1)
    assert exporter.stops == 0
    exports.offer(model(tmp_path, "1"))
    assert soon(lambda: exporter.stops == 1)
    exports.stop()


def test_the_next_turn_begins_while_an_export_is_under_way(
    tmp_path: Path, exporter: FakeExporter
) -> None:
    exports = worker(tmp_path, exporter)

    class Runner:
        config = config(tmp_path, interval=0.0)

        def expect(self) -> None: ...

        def wake(self, state: Any) -> None: ...

        def train(self, state: Any) -> None:
            trained.append(state)

        def measure(self) -> None: ...

        def hand_over(self) -> PersonalModel:
            return model(tmp_path, str(len(trained)))

    trained: list[Any] = []
    turns = Worker(Runner(), exports, queue.SimpleQueue())  # type: ignore[arg-type]
    for _ in range(3):
        turns._turn(STATE)
    assert len(trained) == 3
    assert not exporter.gate.is_set()
    assert exporter.asked in ([], ["1"])
    exporter.gate.set()
    exports.stop()
    assert exporter.asked[-1] == "3"


@pytest.mark.parametrize("interval", [0.0, 1000.0])
def test_a_busy_device_follows_turns_up_at_intervals_and_the_last_one_in_any_case(
    tmp_path: Path, exporter: FakeExporter, interval: float
) -> None:
    """The first turn is measured at once: an interval has passed since none was."""
    exporter.gate.set()
    exports = worker(tmp_path, exporter, interval=interval)
    done: list[str] = []

    class Runner:
        config = config(tmp_path, interval=interval)

        def wake(self, state: Any) -> None: ...

        def train(self, state: Any) -> None:
            done.append("train")

        def measure(self) -> None:
            done.append("measure")

        def hand_over(self) -> None:
            done.append("hand over")

        def stop(self) -> None: ...

    turns = Worker(Runner(), exports, queue.SimpleQueue())  # type: ignore[arg-type]
    for _ in range(3):
        turns.put(lambda: turns._turn(STATE))
    turns.start()
    turns.stop()
    whole = ["train", "hand over", "measure"]
    seldom = ["train", "measure", "train", "train", "hand over", "measure"]
    assert done == (seldom if interval else 3 * whole)
    exports.stop()


@pytest.mark.slow
def test_an_exporter_that_is_killed_costs_one_export_and_no_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no torch, stands back behind other processes, and the next one exports again."""
    device = Device(tmp_path, EXPORTER)
    device.receive(device.data, device.state.version)
    exports, models = device.agent.exports, ModelRegistry(tmp_path / "models")
    assert isinstance(exports.exporter, ExporterProcess)
    process = exports.exporter.process

    exports.export(turn(device))
    assert models.number() == 1
    pid = process.pid
    assert pid is not None
    assert not maps_torch(pid)
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 10

    os.kill(pid, signal.SIGSTOP)  # it dies in the middle of its export
    thread = threading.Thread(target=exports.export, args=(turn(device),))
    thread.start()
    os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert "no personal model was exported: the exporter process was killed" in caplog.text
    assert models.number() == 1

    exports.export(turn(device))
    assert models.number() == 2
    assert models.manifest(2).compared > 0
    exports.stop()
    assert process.pid is None
    device.store.close()


def test_a_template_that_does_not_give_torchs_numbers_is_traced_again(tmp_path: Path) -> None:
    """The network's file may have changed since it was traced, and its layout not."""
    device = Device(tmp_path)
    device.receive(device.data, device.state.version)
    first, exporter = turn(device), device.agent.exports.exporter
    other = msgspec.structs.replace(MODEL, std=(9.0,))
    Template.trace(build_for(MODEL, 1), other).save(first.template)
    with pytest.raises(ExportError, match="differs from torch"):
        exporter.export(ExportRequest(first, "run", None))
    device.agent.exports._schedule.done()
    second = turn(device)
    exporter.export(ExportRequest(second, "run", None))
    assert ModelRegistry(tmp_path / "models").number() == 1
    device.store.close()


def turn(device: Device) -> PersonalModel:
    """Take a turn; its personal model, which is due."""
    device.agent.worker._train(device.state)
    device.agent.worker._follow_up()
    device.store.settle(accepted=True)
    return device.agent.exports._schedule.begin()
