"""What a demo shows: live progress, and at the end who holds what and what left each device."""

from __future__ import annotations

import json
from collections import Counter
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from fededge.cli.fleet import Fleet
from fededge.config import ModelConfig
from fededge.data.local import device_examples, model_spec
from fededge.export import Models, predict, session
from fededge.training import Examples
from fededge.wire.messages import Report, State, Status

__all__ = ["Progress", "collect", "show"]

console = Console(highlight=False)


class Progress:
    """A bar for the rounds with what the last one led to; lines where there is no terminal."""

    def __init__(self, rounds: int, agents: int) -> None:
        self.agents = agents
        self.ready: set[str] = set()
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.rounds = self.bars.add_task("rounds", total=rounds, note="starting processes …")
        self.shown = -1

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def status(self, device: str, status: Status) -> None:
        if status.online and status.activity != "starting" and device not in self.ready:
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
        """A device has answered; the round's own line says what came of it."""

    def _line(self, text: str) -> None:
        if not console.is_terminal:
            console.print(text)


def collect(fleet: Fleet) -> dict[str, Any]:
    """The result as one object; every model is loaded and run with ONNX Runtime here."""
    options = fleet.options
    first, last = _journal(fleet)
    return {
        "seed": options.seed,
        "method": options.method,
        "rounds": last["rounds"],
        "model_sha256": last["sha256"],
        "global_accuracy": {"before": first["accuracy"], "after": last["accuracy"]},
        "devices": [_device(fleet, index) for index in range(options.agents)],
    }


def _journal(fleet: Fleet) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last entry of the coordinator's journal."""
    from fededge_server.store import Store

    rows = Store(fleet.options.folder / "coordinator" / "state").history()
    entries = [
        {"rounds": row.rounds_done, "sha256": row.sha256, "accuracy": row.accuracy} for row in rows
    ]
    return entries[0], entries[-1]


def _device(fleet: Fleet, index: int) -> dict[str, Any]:
    device = fleet.devices[index]
    state = fleet.device_folder(device) / "state"
    spec = model_spec(ModelConfig(), fleet.data(index))
    data = device_examples(fleet.data(index), spec)
    models = Models(state / "models")
    manifest = models.current()
    path = models.folder / "current" / "model.onnx"
    return {
        "id": device,
        "classes": [spec.labels[c] for c in data.counts.nonzero().flatten().tolist()],
        "samples": len(data.y),
        "torch_accuracy": None if manifest is None else manifest.accuracy,
        "onnx_accuracy": None if manifest is None else _onnx_accuracy(path, data),
        "model": None if manifest is None else str(path),
        "bytes_sent": json.loads((state / "ledger.json").read_bytes()),
    }


def _onnx_accuracy(path: Any, data: Examples) -> float | None:
    if not len(data.held_y):
        return None
    predicted = predict(session(path), data.held_x).argmax(1)
    return float((predicted == data.held_y).double().mean())


def show(result: dict[str, Any]) -> None:
    before, after = result["global_accuracy"]["before"], result["global_accuracy"]["after"]
    console.print(_models_table(result))
    console.print(_egress_table(result))
    console.print(
        f"global accuracy {_percent(before)} before, {_percent(after)} after "
        f"{result['rounds']} rounds of {result['method']}"
    )
    console.print(f"global model sha256 {result['model_sha256']}", soft_wrap=True)


def _models_table(result: dict[str, Any]) -> Table:
    table = Table(title="personal models, on each device's own held-out images")
    for name in ("device", "classes held", "samples", "torch", "ONNX Runtime", "model"):
        numeric = name in ("samples", "torch", "ONNX Runtime")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in result["devices"]:
        table.add_row(
            row["id"],
            f"{len(row['classes'])}: {', '.join(row['classes'])}",
            str(row["samples"]),
            _percent(row["torch_accuracy"]),
            _percent(row["onnx_accuracy"]),
            row["model"],
        )
    return table


def _egress_table(result: dict[str, Any]) -> Table:
    """Bytes by kind of field; the JSON result has every tensor and scalar by name."""
    table = Table(title="what left each device, in bytes")
    kinds = ("tensors", "scalars", "report", "status", "framing", "total")
    table.add_column("device")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for row in result["devices"]:
        sums: Counter[str] = Counter()
        for field, count in row["bytes_sent"].items():
            kind = field.split()[0]
            sums[{"tensor": "tensors", "scalar": "scalars"}.get(kind, kind)] += count
            sums["total"] += count
        table.add_row(row["id"], *(f"{sums[kind]:,}" for kind in kinds))
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
