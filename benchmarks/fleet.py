"""The coordinator's cost of a fleet: seconds per round, memory and CPU time.

python benchmarks/fleet.py [--devices 10 100 1000 10000] [--participants 1000] [--rounds 5]
                           [--model lenet] [--json FILE]

One Mosquitto, one real coordinator process, and light agents (`light_agents.py`), each with its own
connection, but without training: an agent sends back the model that it received. They share one
process, so that one machine can hold ten thousand. `joined` is the time from the first connection
to the first round, which waits for all. Memory backed by files (libraries, mostly) is shared and
can be reclaimed; the rest is anonymous. `base` is a process that only imports the coordinator.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from light_agents import LightFleet
from services import service_command

from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import BrokerConfig, CoordinatorConfig, template

SPARE_FILES = 200
"""Open files that a process needs beside its connections."""

TIMEOUT = 1800.0

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


def allow_files(devices: int) -> None:
    """Allow so many connections to this process's children, the broker and the fleet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = devices + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemExit(
            f"{devices} devices need {needed} open files, and this machine allows {hard}: raise "
            "the limit (`ulimit -Hn` as root, or LimitNOFILE), or give fewer --devices"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def host(names: Sequence[str], address: tuple[str, int]) -> None:
    """Run the agents in this process, until it is terminated."""
    LightFleet("fleet", names, address).run()


def measure(devices: int, participants: int, rounds: int, model: str) -> Row:
    """Run one federation from the first agent to the last round."""
    allow_files(devices)
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "broker", "mosquitto") as it:
        folder = Path(name)
        broker = BrokerConfig(host=it.host, port=it.port, wait=600.0)
        wanted = min(participants, devices)
        coordinator = _coordinator(folder, broker, devices, wanted, rounds, model)
        names = [f"box-{index:05d}" for index in range(devices)]
        spawn = multiprocessing.get_context("spawn")
        hosts = [spawn.Process(target=host, args=(names, (it.host, it.port)), daemon=True)]
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
    program = service_command("coordinator", path)
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
        if time.monotonic() - began > TIMEOUT:
            raise SystemExit(f"{devices} devices: not done after {TIMEOUT:.0f} s")
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
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--participants", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
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
