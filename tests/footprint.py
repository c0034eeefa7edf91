"""What the two services hold in memory of a large model: `python -m tests.footprint agent`.

The network has 68 MB and next to no activations, so that what is counted is models. Linux forgets
a process's peak when it is told to, which makes the peak of each step exact.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from fededge import methods
from fededge.config import AgentConfig, RobustConfig, RoundsConfig
from fededge.flat import FlatModel, Layout
from fededge.models import build_for
from fededge.spec import ModelSpec
from fededge.training import Examples
from fededge.wire import chunks, tensors
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Manifest, Report, State, TaskMessage, Training
from fededge_agent.store import AgentStore
from fededge_agent.work import Work
from fededge_server.merging import Current, Merging
from fededge_server.store import Progress, Store

__all__ = ["FORGET", "Peaks"]

SPEC = ModelSpec("mlpnet", ("a", "b"), (1, 128, 128), (0.5,), (0.5,))
VERSION = "000000-0123456789abcdef"
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
    return FlatModel(build_for(SPEC, seed), trains=False)


def payload(folder: Path, name: str, seed: int) -> tuple[Path, Manifest, Layout]:
    """A model's bytes in a file: none of them stay in memory."""
    net = network(seed)
    data = tensors.encode(net.layout, {"model": net.vector})
    path = folder / name
    path.write_bytes(data)
    return path, chunks.manifest(data), net.layout


def pieces(path: Path, manifest: Manifest) -> Iterable[tuple[int, bytes]]:
    with path.open("rb") as file:
        for index in range(manifest.chunks):
            yield index * manifest.chunk_bytes, file.read(manifest.chunk_bytes)


def agent_turn() -> Peaks:
    """A model comes, is trained from, and its update is sent; beside a network with a gradient."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, manifest, layout = payload(folder, "model", 1)
        state = _state(manifest, layout)
        store = AgentStore(folder)
        work = Work(AgentConfig(federation="f", device="box", state=name), store)
        store.open()
        with mock.patch("fededge_agent.work.device_examples", return_value=_examples()):
            work.prepare(state)
        return _turns(Gauge(4 * layout.size), work, store, state, path)


def _turns(gauge: Gauge, work: Work, store: AgentStore, state: State, path: Path) -> Peaks:
    def fetch() -> None:
        store.expect(VERSION, state.manifest)
        for offset, data in pieces(path, state.manifest):
            store.keep(VERSION, offset, data)
        work.check_model(VERSION, state.manifest)

    def send() -> None:
        update, turn = store.update(), store.outgoing
        assert update is not None
        assert turn is not None
        for index in range(turn.report.manifest.chunks):
            chunks.pack(update, turn.report.manifest, index)

    for number in range(2):
        gauge("fetch", fetch)
        gauge("train", partial(work.train, TaskMessage("box", number, VERSION), state))
        gauge("send", send)
        store.settle(accepted=True)
    return gauge.peaks


def _examples() -> Examples:
    x = torch.randint(0, 255, (48, *SPEC.shape), dtype=torch.uint8)
    y = torch.arange(48) % 2
    return Examples(x[:32], y[:32], x[32:], y[32:], 2)


def _state(manifest: Manifest, layout: Layout) -> State:
    return State(
        federation="f",
        run="run",
        seed=0,
        round=0,
        rounds=2,
        phase="open",
        version=VERSION,
        sha256="ab" * 32,
        layout=layout.hash,
        method="fedavg",
        training=Training(1, 16, 0.001, 0.9, 0.0),
        model=SPEC,
        manifest=manifest,
        deadline=0.0,
    )


def coordinator_round() -> Peaks:
    """Six updates are checked and merged, the version is written and made ready to be published."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name))
        store.open()
        net = network(0)
        current = Current(0, VERSION, net.vector, {})
        gauge = Gauge(4 * net.layout.size)
        _round(gauge, store, net.layout, current, [f"box-{index}" for index in range(6)])
        store.close()
        return gauge.peaks


def _round(
    gauge: Gauge, store: Store, layout: Layout, current: Current, devices: list[str]
) -> None:
    method = methods.method("fedavg")
    merging = Merging(store, layout, method, Encoding(), RoundsConfig(), RobustConfig())
    scalars = dict.fromkeys(method.scalars, 1.0)
    reports = {}
    for number, device in enumerate(devices):
        path, manifest, _ = payload(store.folder, "update", number)
        report = Report(device, "run", 0, VERSION, layout.hash, manifest, scalars)
        store.expect(device, report)
        for offset, data in pieces(path, manifest):
            store.keep(VERSION, device, offset, data)
        gauge("check", partial(merging.check, device, report, current))
        reports[device] = report

    def merge() -> None:
        model, state = merging.merge(reports, len(devices), current)
        progress = Progress(1, "000001-0123456789abcdef", layout.sha256(model), None)
        store.advance(progress, layout, model, state, {}, None)

    gauge("merge", merge)
    gauge("publish", lambda: chunks.manifest(tensors.encode(layout, {"model": current.model})))


if __name__ == "__main__":
    measure = {"agent": agent_turn, "coordinator": coordinator_round}[sys.argv[1]]
    sys.stdout.write(json.dumps(measure()) + "\n")
