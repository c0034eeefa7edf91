"""Measures the services' memory with a large model: `python -m tests.footprint agent float32`.

Also `merging` for the steps of a round at the coordinator, and `coordinator` for all of it.
The network has 68 MB and next to no activations, so that what is counted is models. Linux forgets
a process's peak when it is told to, which makes the peak of each step exact.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest import mock

import msgspec

from fededge import methods, models
from fededge._internal.lazy_torch import torch, torch_is_loaded
from fededge._internal.malloc import return_free_memory
from fededge.config import (
    AgentConfig,
    CoordinatorConfig,
    DataConfig,
    ModelConfig,
    RobustConfig,
    RoundsConfig,
)
from fededge.flat import FlatModel, Layout, Vector, as_numpy
from fededge.model_spec import ModelSpec
from fededge.storage.source import FileSource
from fededge.training import Examples
from fededge.transport.outbox import Outbox, Parcel
from fededge.transport.session import Delivered, Incoming, Session, Will
from fededge.wire import chunks
from fededge.wire.encoding import Encoding
from fededge.wire.messages import (
    Manifest,
    Report,
    State,
    Status,
    TaskMessage,
    Training,
    decode,
    encode,
)
from fededge.wire.topics import Topics
from fededge_server.model.merging import Current, Merging
from fededge_server.running import RunningCoordinator
from fededge_server.shell import Coordinator
from fededge_server.store import Progress, Store
from tests.states import made_state

if TYPE_CHECKING:  # what has torch: a coordinator is measured without
    from fededge_agent.store import AgentStore
    from fededge_agent.trainer.turns import DeviceTurns
    from fededge_agent.turn_runner import TurnRunner

__all__ = ["FORGET", "Peaks"]

SPEC = ModelSpec("mlpnet", ("a", "b"), (1, 128, 128), (0.5,), (0.5,))
VERSION = "000000-0123456789abcdef"
DEVICES = [f"box-{index}" for index in range(6)]
FORGET = Path("/proc/self/clear_refs")
Peaks = dict[str, float]
"""By step: the most that was held beyond what was there before the first one, in models."""


class Gauge:
    """Peaks of steps, over what is resident now."""

    def __init__(self, model_bytes: int) -> None:
        self.model_bytes = model_bytes
        self.base = _resident("VmRSS")
        self.peaks: Peaks = {}

    def __call__(self, step: str, action: Callable[[], object]) -> None:
        FORGET.write_text("5")
        action()
        held = (_resident("VmHWM") - self.base) / self.model_bytes
        self.peaks[step] = max(held, self.peaks.get(step, 0.0))


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def network(seed: int) -> FlatModel:
    return FlatModel(models.build_for(SPEC, seed), trains=False)


def payload(folder: Path, name: str, seed: int, encoding: Encoding) -> tuple[Path, Manifest]:
    """A model's bytes in a file, as it comes from the coordinator: none of them stay in memory."""
    net = network(seed)
    path = folder / name
    with path.open("wb") as file:
        encoding.send(file, net.layout, {"model": as_numpy(net.vector)})
    return path, chunks.manifest(FileSource(path))


def pieces(path: Path, manifest: Manifest) -> Iterable[tuple[int, bytes]]:
    with path.open("rb") as file:
        for index in range(manifest.chunks):
            yield index * manifest.chunk_bytes, file.read(manifest.chunk_bytes)


def agent(encoding: Encoding) -> Peaks:
    """A model comes, is trained from, and its update is sent; beside a network with a gradient."""
    from fededge_agent.store import AgentStore
    from fededge_agent.trainer.turns import DeviceTurns
    from fededge_agent.turn_runner import TurnRunner

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, manifest = payload(folder, "model", 1, encoding)
        layout = network(0).layout
        version = f"000000-{network(1).sha256()[:16]}"
        state = _state(manifest, version, layout, encoding)
        store = AgentStore(folder)
        config = AgentConfig(federation="f", device="box", state=name)
        turns = DeviceTurns(config)
        runner = TurnRunner(config, store, turns)
        store.open()
        with mock.patch("fededge_agent.trainer.turns.device_examples", return_value=_examples()):
            runner.prepare(state)
        return _turns(Gauge(4 * layout.size), runner, turns, store, state, path)


def _turns(
    gauge: Gauge,
    runner: TurnRunner,
    turns: DeviceTurns,
    store: AgentStore,
    state: State,
    path: Path,
) -> Peaks:
    def fetch() -> None:
        store.expect(state.version, state.manifest)
        for offset, data in pieces(path, state.manifest):
            store.keep(state.version, offset, data)
        runner.check_model(state.version, state.manifest)

    def send() -> None:
        update = store.update()
        assert update is not None
        for index in range(update.facts.chunks):
            update.chunk(index)

    for number in range(2):
        gauge("fetch", fetch)
        gauge("train", partial(runner.train, msgspec.structs.replace(state, round=number)))
        turns.finished = turns.unmeasured = None  # as the follow-up, which is left out here, begins
        gauge("send", send)
        store.settle(accepted=True)
    return gauge.peaks


def _examples() -> Examples:
    x = torch.randint(0, 255, (48, *SPEC.shape), dtype=torch.uint8)
    y = torch.arange(48) % 2
    return Examples(x[:32], y[:32], x[32:], y[32:], 2)


def _state(manifest: Manifest, version: str, layout: Layout, encoding: Encoding) -> State:
    return made_state(
        version=version,
        layout=layout.hash,
        training=Training(1, 16, 0.001, 0.9, 0.0),
        model=SPEC,
        manifest=manifest,
        deadline=0.0,
        encoding=str(encoding),
    )


def update(folder: Path, seed: int, base: Vector, encoding: Encoding) -> tuple[Path, Manifest]:
    """An update's bytes in a file, as it comes from a device."""
    net = network(seed)
    path = folder / "update"
    with path.open("wb") as file:
        encoding.write_(None, file, net.layout, as_numpy(net.vector), base)
    return path, chunks.manifest(FileSource(path))


def merging(encoding: Encoding) -> Peaks:
    """Six updates are checked and merged, the version is written and made ready to be published."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name))
        store.open()
        net = network(0)
        current = Current(0, VERSION, as_numpy(net.vector), {})
        gauge = Gauge(4 * net.layout.size)
        _round(gauge, store, net.layout, current, encoding)
        store.close()
        return gauge.peaks


def _round(
    gauge: Gauge, store: Store, layout: Layout, current: Current, encoding: Encoding
) -> None:
    method = methods.method("fedavg")
    merging = Merging(
        store, layout, method, encoding, RoundsConfig(), RobustConfig(), methods.Hyper()
    )
    scalars = dict.fromkeys(method.scalars, 1.0)
    reports = {}
    for number, device in enumerate(DEVICES):
        path, manifest = update(store.folder, number, current.model, encoding)
        report = Report(device, "run", VERSION, layout.hash, manifest, scalars)
        store.expect(device, report)
        for offset, data in pieces(path, manifest):
            store.keep(VERSION, device, offset, data)
        gauge("check", partial(merging.check, device, report, current, math.inf))
        reports[device] = report
    progress = Progress(1, "000001-0123456789abcdef", "ab" * 32, None)

    def merge() -> None:
        merged = merging.merge(reports, {}, len(DEVICES), current)
        assert list(merged.merged) == DEVICES, merged
        store.advance(progress, layout, merged.model, merged.state, {}, None)

    gauge("merge", merge)
    gauge("publish", lambda: chunks.Payload.of(FileSource(store.model(progress.version))).chunk(0))


class Wire:
    """A session whose broker is the test: what is sent has arrived, and nothing of it is kept."""

    address = "mqtt://none"

    def __init__(self) -> None:
        self.replies: list[tuple[str, bytes]] = []
        self.arrived: list[int] = []
        self.numbers = itertools.count(1)
        self.outbox = Outbox(self._hand)

    def _hand(self, parcel: Parcel, payload: bytes) -> int:
        self.arrived.append(next(self.numbers))
        return self.arrived[-1]

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        if not retain:
            self.replies.append((topic, payload))

    def send(self, parcel: Parcel) -> None:
        self.outbox.put(parcel)

    def delivered(self, event: Delivered) -> None:
        self.outbox.arrived(event.number)

    def drop(self, prefix: str) -> None:
        self.outbox.drop(prefix)

    @property
    def idle(self) -> bool:
        return self.outbox.empty

    def subscribe(self, *topics: str, as_published: bool = False) -> None: ...

    def start(self) -> None: ...

    def stop(self, last_words: Will | None = None) -> None: ...


class Alone:
    """A coordinator on that wire, with a fleet that the test plays: all of it in this process."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self.wire = Wire()
        self.coordinator = Coordinator(
            config,
            connect=lambda *_: cast("Session", self.wire),
            claim=lambda config, identity: None,
        )
        self.topics = Topics(config.federation)
        self.rounds_done = 0
        self.size = 0

    def run(self) -> None:
        """Every device takes its turn, until all rounds are done."""
        return_free_memory()
        try:
            self.play(self.coordinator.start())
        finally:
            self.coordinator.close()

    def play(self, running: RunningCoordinator) -> None:
        running.parts.publisher.begin()
        self.arrive(running)
        for device in DEVICES:
            status = Status(
                "ab" * 16,
                True,
                device=device,
                activity="ready",
                layout=running.parts.versions.layout.hash,
                examples=1,
            )
            self.hear(running, self.topics.device(device, "status"), encode(status))
        running.tick()
        while not running.rounds_done:
            tasks = [m for t, m in self.wire.replies if t.endswith("/task")]
            self.wire.replies.clear()
            for task in tasks:
                self.answer(running, decode(task, TaskMessage))
            self.arrive(running)
        self.rounds_done = running.progress.rounds_done
        self.size = running.parts.versions.layout.size

    def answer(self, running: RunningCoordinator, task: TaskMessage) -> None:
        """Answer as an agent would, with the model that it received: that is on disk already."""
        versions = running.parts.versions
        path = running.parts.store.model(task.version)
        scalars = dict.fromkeys(versions.method.scalars, 1.0)
        manifest = chunks.manifest(FileSource(path))
        run, layout = versions.run, versions.layout.hash
        report = Report(task.device, run, task.version, layout, manifest, scalars)
        payload = chunks.Payload.of(FileSource(path))
        self.hear(running, self.topics.device(task.device, "report"), encode(report))
        for index in range(manifest.chunks):
            topic = self.topics.update(task.device, task.version, index)
            self.hear(running, topic, payload.chunk(index))

    def hear(self, running: RunningCoordinator, topic: str, message: bytes) -> None:
        running.take(Incoming(topic, message, False, lambda: None))
        running.pause()

    def arrive(self, running: RunningCoordinator) -> None:
        while self.wire.arrived:
            running.take(Delivered(self.wire.arrived.pop()))


def coordinator(_: Encoding) -> Peaks:
    """From its first line to its last, over what a process has that has imported it."""
    with tempfile.TemporaryDirectory() as name:
        config = CoordinatorConfig(
            federation="f",
            state=name,
            data=DataConfig(source="none"),
            model=ModelConfig(
                name=SPEC.name, labels=SPEC.labels, shape=SPEC.shape, mean=SPEC.mean, std=SPEC.std
            ),
            rounds=RoundsConfig(count=3, min_devices=len(DEVICES)),
        )
        run, gauge = Alone(config), Gauge(1)
        gauge("run", run.run)
        assert run.rounds_done == 3
        assert not torch_is_loaded()
        return {step: held / (4 * run.size) for step, held in gauge.peaks.items()}


if __name__ == "__main__":
    measure = {"agent": agent, "merging": merging, "coordinator": coordinator}[sys.argv[1]]
    sys.stdout.write(json.dumps(measure(Encoding.parse(sys.argv[2]))) + "\n")
