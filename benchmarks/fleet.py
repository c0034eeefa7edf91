"""The coordinator's cost of a fleet: seconds per round, memory and CPU time.

python benchmarks/fleet.py [--devices 10 100 1000] [--participants 100] [--rounds 10]
                           [--model lenet] [--json FILE]

One Mosquitto, one real coordinator process, and real agents, each with its own connection, state
on disk and ledger, but without training: an agent sends back the model that it received. Agents
share a few processes, so that one machine can run a thousand. The first rounds are left out of the
seconds: the agents are still joining. Memory backed by files (torch's libraries, mostly) is shared
and can be reclaimed; the rest is anonymous. `base` is a process that only imports the coordinator.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from fededge import methods
from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import AgentConfig, BrokerConfig, CoordinatorConfig, template
from fededge.flat import FlatModel
from fededge.methods import Private
from fededge.models import build_for
from fededge.storage.source import FileSource
from fededge.wire import chunks, tensors
from fededge.wire.messages import Report, State
from fededge_agent.agent import Agent, Surroundings
from fededge_agent.requests import PreparedJob
from fededge_agent.store import Index, TrainedTurn
from fededge_agent.trainer.turn_files import TurnFiles
from fededge_agent.trainer.turns import DeviceTurns

MOST_IN_A_PROCESS = 200
"""Agents per process: each has four open files, and paho's select takes none above 1023."""

EXAMPLES = 100
APART = 0.1
"""Seconds between the starts of two agents: all at once would measure this machine's start-up."""

STACK = 2 << 20
"""Bytes of a thread's stack: an agent has several threads, and 8 MB each would be too much."""

PATIENCE = 1800.0

MODEL = {"labels": [*"0123456789"], "shape": [1, 28, 28], "mean": [0.5], "std": [0.5]}


@dataclass(frozen=True)
class Row:
    """One fleet: sizes, the median seconds of a round, the coordinator's memory and CPU time."""

    devices: int
    participants: int
    rounds: int
    model_mb: float
    joined_s: float
    round_s: float
    cpu_s_a_round: float
    rss_mb: float
    peak_rss_mb: float
    peak_anonymous_mb: float
    base_rss_mb: float
    base_anonymous_mb: float


class EchoTurns(DeviceTurns):
    """A device without training: it sends back the model; all agents share one network."""

    shared: FlatModel | None = None
    lock = threading.Lock()

    def start(self) -> None:
        """Torch is here already."""

    def prepare(self, state: State, export: bool = True) -> PreparedJob:
        method = methods.announced(state.method, state.files, [])
        with EchoTurns.lock:
            if EchoTurns.shared is None:
                EchoTurns.shared = FlatModel(build_for(state.model, seed=0))
        self.job = PreparedJob(EchoTurns.shared.layout, (), method.scalars, EXAMPLES)
        return self.job

    def train(self, state: State, index: Index) -> TrainedTurn:
        assert self.job is not None, "not prepared"
        layout, files = self.job.layout, TurnFiles(self.folder, index)
        vectors = files.model(state.version, lambda file: tensors.decode(layout, file))
        update, path = files.write_update(lambda file: tensors.write(file, layout, vectors))
        report = Report(
            device=self.config.device,
            run=state.run,
            version=state.version,
            layout=layout.hash,
            manifest=chunks.manifest(FileSource(path), state.manifest.chunk_bytes),
            scalars=dict.fromkeys(self.job.scalars, 1.0) | {"examples": float(EXAMPLES)},
        )
        now, accepted = files.write_private(Private()), files.write_accepted(Private())
        return TrainedTurn(report, update, now, accepted)

    def hand_over(self) -> None:
        """No personal model."""


def host(folder: Path, broker: BrokerConfig, names: Sequence[str]) -> None:
    """Run some of the agents in threads of this process, until it is terminated."""
    threading.stack_size(STACK)
    for name in names:
        config = AgentConfig(
            federation="fleet", device=name, state=str(folder / name), broker=broker
        )
        agent = Agent(config, Surroundings(trainer=lambda config, store: EchoTurns(config)))
        threading.Thread(target=agent.run, name=name, daemon=True).start()
        time.sleep(APART)
    threading.Event().wait()


def measure(devices: int, participants: int, rounds: int, model: str) -> Row:
    """Run one federation from the first agent to the last round."""
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "broker", "mosquitto") as it:
        folder = Path(name)
        broker = BrokerConfig(host=it.host, port=it.port, wait=600.0)
        wanted = min(participants, devices)
        coordinator = _coordinator(folder, broker, devices, wanted, rounds, model)
        fleet = [f"box-{index:04d}" for index in range(devices)]
        count = max(2, -(-devices // MOST_IN_A_PROCESS))
        spawn = multiprocessing.get_context("spawn")
        hosts = [
            spawn.Process(target=host, args=(folder, broker, fleet[index::count]), daemon=True)
            for index in range(count)
        ]
        began = time.monotonic()
        for process in hosts:
            process.start()
        try:
            return _watch(coordinator, hosts, folder, began, devices, wanted, rounds)
        finally:
            for process in hosts:
                process.kill()
            coordinator.kill()


def _coordinator(
    folder: Path, broker: BrokerConfig, devices: int, participants: int, rounds: int, model: str
) -> Child:
    config = template(
        CoordinatorConfig,
        {
            "federation": "fleet",
            "state": "state",
            "broker": {"host": broker.host, "port": broker.port, "wait": 60.0},
            "data": {"source": "none"},
            "model": {**MODEL, "name": model},
            "rounds": {"count": rounds, "participants": participants, "min_devices": devices},
        },
    )
    path = folder / "coordinator.toml"
    path.write_text(config)
    program = [sys.executable, "-m", "fededge", "coordinator", "--config", str(path)]
    child = Child(program, folder / "coordinator.log")
    child.start()
    return child


def _watch(
    coordinator: Child,
    hosts: Sequence[BaseProcess],
    folder: Path,
    began: float,
    devices: int,
    participants: int,
    rounds: int,
) -> Row:
    """Sample the coordinator's memory until it ends; then read its journal."""
    joined, at_join = 0.0, 0.0
    rss = peak = anonymous = cpu = 0.0
    base, base_anonymous = _base()
    while coordinator.exit_code is None:
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"{devices} devices: not done after {PATIENCE:.0f} s")
        if not all(process.is_alive() for process in hosts):
            raise SystemExit(f"{devices} devices: a process of agents died, see above")
        if coordinator.pid is not None and (seen := _process(coordinator.pid)) is not None:
            rss, peak, now, cpu = seen
            anonymous = max(anonymous, now)
        if not joined and "round 1:" in coordinator.log.read_text():
            joined, at_join = time.monotonic() - began, cpu
        time.sleep(0.02)
    if coordinator.exit_code != 0:
        raise SystemExit(coordinator.said(20))
    with sqlite3.connect(folder / "state" / "journal.sqlite") as journal:
        seconds = [row[0] for row in journal.execute("SELECT seconds FROM rounds ORDER BY number")]
    size = max(file.stat().st_size for file in (folder / "state" / "models").iterdir()) / 1e6
    return Row(
        devices,
        participants,
        rounds,
        round(size, 2),
        round(joined, 1),
        round(statistics.median(seconds[2:]), 3),
        round((cpu - at_join) / rounds, 3),
        round(rss, 1),
        round(peak, 1),
        round(anonymous, 1),
        round(base, 1),
        round(base_anonymous, 1),
    )


def _base() -> tuple[float, float]:
    """Return the megabytes of a process that only imports the coordinator: RSS, anonymous."""
    code = "import fededge_server.shell; print(open('/proc/self/status').read())"
    status = subprocess.check_output([sys.executable, "-c", code], text=True)
    rss, _, anonymous = _megabytes(status)
    return rss, anonymous


def _megabytes(status: str) -> tuple[float, float, float]:
    """Return RSS, peak RSS and anonymous memory."""
    sizes = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    keys = ("VmRSS", "VmHWM", "RssAnon")
    rss, peak, anonymous = (int(sizes[key].split()[0]) * 1024 / 1e6 for key in keys)
    return rss, peak, anonymous


def _process(pid: int) -> tuple[float, float, float, float] | None:
    """Return a process's `_megabytes` and CPU seconds; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    if "VmRSS" not in status:
        return None
    ticks = [int(field) for field in stat.rsplit(")", 1)[1].split()[11:13]]
    return *_megabytes(status), sum(ticks) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--participants", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    rows = []
    print(
        "devices  a round  model MB  joined s  round s  CPU s a round  RSS MB     peak MB"
        "     peak anonymous MB  base MB  base anonymous MB"
    )
    for devices in flags.devices:
        row = measure(devices, flags.participants, flags.rounds, flags.model)
        rows.append(asdict(row))
        print(
            f"{row.devices:7} {row.participants:8} {row.model_mb:9} {row.joined_s:9}"
            f" {row.round_s:8} {row.cpu_s_a_round:14} {row.rss_mb:7} {row.peak_rss_mb:11}"
            f" {row.peak_anonymous_mb:21} {row.base_rss_mb:8} {row.base_anonymous_mb:18}"
        )
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
