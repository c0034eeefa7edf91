"""The output of a demo: live progress, then each device's model and the data that left it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fededge.cli.demo.fleet import Fleet
from fededge.cli.operation.audit import read_ledger
from fededge.config import ModelConfig
from fededge.data.local import device_examples, model_spec
from fededge.export import ModelRegistry, predict, session
from fededge.predictor.manifest import CURRENT, MODEL
from fededge.training import Examples
from fededge.wire.messages import Report, State, Status

__all__ = ["DeviceOutcome", "LiveProgress", "RunOutcome", "collect", "show"]

MOST_CLASSES_SHOWN = 20

console = Console(highlight=False, markup=False, emoji=False)


class LiveProgress:
    """A progress bar of the rounds with the last accuracy; log lines without a terminal."""

    def __init__(self, rounds: int, agents: int) -> None:
        self.agents = agents
        self.ready: set[str] = set()
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.rounds = self.bars.add_task("rounds", total=rounds, note="starting processes …")
        self.shown = -1

    def __enter__(self) -> LiveProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def status(self, device: str, status: Status) -> None:
        able = status.online and status.activity not in ("starting", "unable", "resting")
        if able and device not in self.ready:
            self.ready.add(device)
            note = f"{len(self.ready)} of {self.agents} agents ready"
            self.bars.update(self.rounds, note=note)
            self._line(f"{device} ready with {status.examples} examples")

    def state(self, state: State) -> None:
        score = "" if state.accuracy is None else f"global accuracy {state.accuracy:.1%}"
        self.bars.update(self.rounds, completed=state.round, note=score)
        if state.round != self.shown:
            self.shown = state.round
            self._line(f"after round {state.round}: {score}")

    def report(self, device: str, report: Report) -> None:
        """Ignore a device's report: the round's line shows the result."""

    def _line(self, text: str) -> None:
        if not console.is_terminal:
            console.print(text)


@dataclass(frozen=True)
class DeviceOutcome:
    """A device's data and model at the end, and the bytes that left it."""

    id: str
    labels: tuple[str, ...]
    counts: list[int]
    torch_accuracy: float | None
    onnx_accuracy: float | None
    model: str | None
    bytes_sent: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "classes": [label for label, n in zip(self.labels, self.counts, strict=True) if n],
            "samples": sum(self.counts),
            "torch_accuracy": self.torch_accuracy,
            "onnx_accuracy": self.onnx_accuracy,
            "model": self.model,
            "bytes_sent": self.bytes_sent,
        }


@dataclass(frozen=True)
class RunOutcome:
    """The result of a federation's run."""

    seed: int
    method: str
    rounds: int
    model_sha256: str
    before: float | None
    after: float | None
    devices: list[DeviceOutcome]

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "method": self.method,
            "rounds": self.rounds,
            "model_sha256": self.model_sha256,
            "global_accuracy": {"before": self.before, "after": self.after},
            "devices": [device.as_json() for device in self.devices],
        }


def collect(fleet: Fleet) -> RunOutcome:
    """Read the processes' files; run every model with ONNX Runtime."""
    from fededge_server.store import Store

    options = fleet.options
    history = Store(options.folder / "coordinator").history()
    return RunOutcome(
        options.seed,
        options.method,
        history[-1].rounds_done,
        history[-1].sha256,
        history[0].accuracy,
        history[-1].accuracy,
        [_device(fleet, index) for index in range(options.agents)],
    )


def _device(fleet: Fleet, index: int) -> DeviceOutcome:
    from fededge_agent.store.file_names import LEDGER

    state = fleet.device_folder(fleet.devices[index])
    spec = model_spec(ModelConfig(), fleet.data(index))
    data = device_examples(fleet.data(index), spec)
    models = ModelRegistry(state / "models")
    manifest = models.current()
    path = models.folder / CURRENT / MODEL
    return DeviceOutcome(
        fleet.devices[index],
        spec.labels,
        data.counts.tolist(),
        None if manifest is None else manifest.accuracy,
        None if manifest is None else _onnx_accuracy(path, data),
        None if manifest is None else str(path),
        read_ledger(state / LEDGER),
    )


def _onnx_accuracy(path: Path, data: Examples) -> float | None:
    if not len(data.held_y):
        return None
    predicted = predict(session(path), data.held_x).argmax(1)
    return float((predicted == data.held_y).double().mean())


def show(outcome: RunOutcome) -> None:
    console.print(_models_table(outcome))
    console.print(_egress_table(outcome))
    console.print(
        f"global accuracy {_percent(outcome.before)} before, {_percent(outcome.after)} after "
        f"{outcome.rounds} rounds of {outcome.method}"
    )
    console.print(f"global model sha256 {outcome.model_sha256}", soft_wrap=True)


def _models_table(outcome: RunOutcome) -> Table:
    table = Table(title="personal models, on each device's own held-out images")
    for name in ("device", "classes", "samples", "torch", "ONNX"):
        table.add_column(name, justify="left" if name in ("device", "classes") else "right")
    table.add_column("model", overflow="fold")
    for device in outcome.devices:
        table.add_row(
            device.id,
            f"{sum(map(bool, device.counts)):2} {_histogram(device.counts)}",
            str(sum(device.counts)),
            _percent(device.torch_accuracy),
            _percent(device.onnx_accuracy),
            "none" if device.model is None else os.path.relpath(device.model),
        )
    return table


def _histogram(counts: list[int]) -> str:
    """Return one bar per class: its number of examples, relative to the largest class."""
    steps = " ▁▂▃▄▅▆▇█"
    if len(counts) > MOST_CLASSES_SHOWN:
        return ""
    return "".join(steps[-(-8 * count // max(counts))] for count in counts)


def _egress_table(outcome: RunOutcome) -> Table:
    """Show bytes by kind of field; the JSON result has every tensor and scalar by name."""
    # The table just fits 80 columns without the outer padding; no digit may be cut off.
    table = Table(title="what left each device, in bytes", pad_edge=console.width > 80)
    kinds = ("tensors", "scalars", "report", "status", "claim", "framing", "total")
    table.add_column("device", overflow="fold")
    for kind in kinds:
        table.add_column(kind, justify="right", overflow="fold")
    for device in outcome.devices:
        sums: Counter[str] = Counter()
        for field, count in device.bytes_sent.items():
            kind = field.split()[0]
            sums[{"tensor": "tensors", "scalar": "scalars"}.get(kind, kind)] += count
            sums["total"] += count
        table.add_row(device.id, *(f"{sums[kind]:,}" for kind in kinds))
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
