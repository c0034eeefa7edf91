"""An agent's memory and speed: a real agent that trains, idle and busy.

python benchmarks/agent.py [--models lenet resnet18-small] [--turns 5] [--examples 400]
                           [--device cpu] [--threads 1] [--precision float32] [--json FILE]

Memory: one Mosquitto, one real coordinator and one real agent with its trainer process; resident
memory while it trains, and once the trainer has ended. Speed: the same turns in a trainer process
and in this process (as an agent without one would train), in alternation; then turns for which
the trainer process must be started, each after an import of torch alone. `ratio` is the median
of the turns there by the median of the turns here.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from services import service_command

from device_flags import add_device_flags
from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import (
    AgentConfig,
    CoordinatorConfig,
    DataConfig,
    HardwareConfig,
    ModelConfig,
    template,
)
from fededge.data.local import model_spec
from fededge.flat import FlatModel, as_numpy
from fededge.models import build_for
from fededge.training import prepare_training
from fededge.wire import chunks, tensors
from fededge.wire.messages import State, Training
from fededge_agent.agent import Agent, Surroundings
from fededge_agent.trainer.turns import DeviceTurns
from fededge_agent.turn_runner import TurnRunner

TIMEOUT = 900.0
IDLE = 2.0
MB = 1e6


@dataclass(frozen=True)
class Row:
    """One network: megabytes of the agent and its trainer, and seconds of a turn."""

    model: str
    model_mb: float
    idle_rss_mb: float
    training_rss_mb: float
    trainer_rss_mb: float
    invited_to_update_s: float
    turn_here_s: float
    turn_there_s: float
    ratio: float
    first_turn_s: float
    import_torch_s: float
    after_idleness_s: float


def data(examples: int) -> DataConfig:
    """A share of the embedded images that has about this many examples."""
    devices = max(1, 6000 // examples)
    return DataConfig(source="embedded", split="uniform", devices=devices, index=0)


# Memory, and a round's seconds


def federation(
    folder: Path, model: str, rounds: int, examples: int, hardware: HardwareConfig
) -> tuple[float, ...]:
    """Run a federation of one agent: idle and training RSS, the trainer's, seconds of a turn."""
    with Broker(folder / "broker", "mosquitto") as broker:
        where = {"host": broker.host, "port": broker.port, "wait": 60.0}
        common = {"federation": "bench", "state": "state", "broker": where}
        shared = msgspec.to_builtins(data(examples))
        chosen = {**msgspec.to_builtins(hardware), "idle": IDLE}
        agent = _start(
            folder / "agent",
            "agent",
            template(
                AgentConfig,
                {**common, "device": "box", "data": shared, "hardware": chosen},
            ),
        )
        coordinator = _start(
            folder / "coordinator",
            "coordinator",
            template(
                CoordinatorConfig,
                {
                    **common,
                    "data": {"source": "none"},  # nothing is evaluated there
                    "model": _announced(model),
                    "rounds": {"count": rounds, "min_devices": 1, "quorum": 1},
                    "training": {"epochs": 1},
                },
            ),
        )
        try:
            return _watch(agent, coordinator)
        finally:
            agent.kill()
            coordinator.kill()


def _announced(model: str) -> dict[str, Any]:
    spec = model_spec(ModelConfig(name=model), DataConfig(source="embedded"))
    facts = msgspec.to_builtins(spec)
    return {key: facts[key] for key in ("name", "labels", "shape", "mean", "std")}


def _start(folder: Path, command: str, config: str) -> Child:
    folder.mkdir()
    path = folder / "config.toml"
    path.write_text(config)
    child = Child(service_command(command, path), folder / "log.txt")
    child.start()
    return child


def _watch(agent: Child, coordinator: Child) -> tuple[float, ...]:
    """Sample until the run is over and the trainer has ended."""
    busy = trainer = 0.0
    deadline = time.monotonic() + TIMEOUT
    while coordinator.exit_code is None:
        if time.monotonic() > deadline or agent.pid is None:
            raise SystemExit(f"{coordinator.said(10)}\n{agent.said(10)}")
        if (child := _trainer(agent.pid)) is not None:
            trainer = max(trainer, _rss(child))
            busy = max(busy, _rss(agent.pid))
        time.sleep(0.02)
    pid = agent.pid
    assert pid is not None
    _until(lambda: _trainer(pid) is None)
    with_rounds = coordinator.log.parent / "state" / "journal.sqlite"
    return _rss(pid), busy, trainer, _round_seconds(with_rounds)


def _round_seconds(journal: Path) -> float:
    """From the invitations to the last update, by the coordinator's journal; without the first."""
    with sqlite3.connect(journal) as opened:
        found = opened.execute("SELECT seconds FROM rounds ORDER BY number")
        rows = [float(row[0]) for row in found if row[0] is not None]
    return statistics.median(rows[1:] or rows)


def _trainer(agent: int) -> int | None:
    for thread in Path(f"/proc/{agent}/task").glob("*"):
        for pid in _read(agent, f"task/{thread.name}/children").split():
            if b"fededge_agent.trainer" in _read(int(pid), "cmdline"):
                return int(pid)
    return None


def _rss(pid: int) -> float:
    lines = _read(pid, "status").decode().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if "VmRSS" in line), 0) / MB


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the trainer process did not end")
        time.sleep(0.05)


# Turns there and here


class Bench:
    """A device whose turns are taken in this process, or in a trainer process."""

    def __init__(
        self, folder: Path, model: str, examples: int, hardware: HardwareConfig, here: bool
    ) -> None:
        config = AgentConfig(
            federation="bench",
            device="box",
            state=str(folder),
            data=data(examples),
            hardware=hardware,
        )
        around = Surroundings(trainer=lambda c, _: DeviceTurns(c)) if here else Surroundings()
        self.agent = Agent(config, around)
        self.agent.store.open()
        self.runner: TurnRunner = self.agent.runner
        self.runner.start()
        self.state = self._state(model)
        self.runner.prepare(self.state)
        self._receive()

    def _state(self, model: str) -> State:
        spec = model_spec(ModelConfig(name=model), DataConfig(source="embedded"))
        self.net = FlatModel(build_for(spec, 1), trains=False)
        self.payload = tensors.encode(self.net.layout, {"model": as_numpy(self.net.vector)})
        return State(
            federation="bench",
            run="run",
            seed=0,
            round=0,
            rounds=1,
            phase="open",
            version=f"000000-{self.net.sha256()[:16]}",
            sha256="ab" * 32,
            layout=self.net.layout.hash,
            method="fedavg",
            training=Training(1, 32, 0.01, 0.9, 0.0),
            model=spec,
            manifest=chunks.manifest(self.payload),
            deadline=0.0,
        )

    def _receive(self) -> None:
        self.agent.store.expect(self.state.version, self.state.manifest)
        self.agent.store.keep(self.state.version, 0, self.payload)
        self.runner.check_model(self.state.version, self.state.manifest)

    def turn(self) -> float:
        """Seconds from the command to train until the update is on disk."""
        began = time.perf_counter()
        self.runner.wake(self.state)
        self.runner.train(self.state)
        seconds = time.perf_counter() - began
        self.agent.store.settle(accepted=True)
        return seconds

    def follow_up(self) -> None:
        self.runner.hand_over()
        self.runner.measure()


def _import_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def turns(
    folder: Path, model: str, count: int, examples: int, hardware: HardwareConfig
) -> dict[str, float]:
    prepare_training()
    here = Bench(folder / "here", model, examples, hardware, here=True)
    there = Bench(folder / "there", model, examples, hardware, here=False)
    seconds: dict[str, list[float]] = {"here": [], "there": [], "first": [], "import": []}
    for number in range(count + 1):
        for name, bench in (("here", here), ("there", there))[:: 1 if number % 2 else -1]:
            taken = bench.turn()
            bench.follow_up()
            if number:  # the first one warms up
                seconds[name].append(taken)
    for _ in range(max(2, count // 2)):
        there.runner.stop()
        seconds["import"].append(_import_seconds())
        seconds["first"].append(there.turn())
        there.follow_up()
    for bench in (here, there):
        bench.agent.close()
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(model: str, count: int, examples: int, hardware: HardwareConfig) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        idle, busy, trainer, round_s = federation(folder, model, count + 1, examples, hardware)
        took = turns(folder, model, count, examples, hardware)
        size = (folder / "there" / "private").glob("*.safetensors")
        return Row(
            model=model,
            model_mb=round(sum(path.stat().st_size for path in size) / MB, 2),
            idle_rss_mb=round(idle, 1),
            training_rss_mb=round(busy, 1),
            trainer_rss_mb=round(trainer, 1),
            invited_to_update_s=round(round_s, 3),
            turn_here_s=round(took["here"], 3),
            turn_there_s=round(took["there"], 3),
            ratio=round(took["there"] / took["here"], 3),
            first_turn_s=round(took["first"], 3),
            import_torch_s=round(took["import"], 3),
            after_idleness_s=round(took["first"] - took["there"] - took["import"], 3),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet18-small"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--examples", type=int, default=400)
    add_device_flags(parser, "device", "threads", "precision")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    names = ("device", "threads", "precision")
    hardware = msgspec.convert({name: getattr(flags, name) for name in names}, HardwareConfig)
    rows: list[dict[str, Any]] = []
    for model in flags.models:
        rows.append(asdict(measure(model, flags.turns, flags.examples, hardware)))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
