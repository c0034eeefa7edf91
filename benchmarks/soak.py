"""A federation under an operator's hands and `kill -9` in real time: memory, files, stuck rounds.

PYTHONPATH=. python benchmarks/soak.py [--minutes 30] [--agents 3] [--every 20] [--json FILE]

One Mosquitto with a store, a coordinator without a last round, and agents that train LeNet on a
small real data set. Every few seconds something happens. In the first third of the time services
are killed and the broker restarts; in the rest only the last agent and trainers are, so that the
others live long enough for a slope. A process's memory is flat if a line through its samples, less
the first fifth of its life, rises by at most 5 % or 4 MB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from process_figures import trainer_of, usage

from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import AgentConfig, CoordinatorConfig, template
from fededge_server.store import Store
from tests.integration.conftest import write_images
from tests.service_commands import service_command

SAMPLE = 5.0
DEADLINE = 60.0
RISE, RISE_MB = 0.05, 4.0
WARM_UP = 0.2
"""Share of a process's life before its memory counts."""

LONGEST_GAP = DEADLINE + 60.0
"""Seconds between two versions after which a round counts as stuck; pauses are left out."""

PAUSED = 10.0
ROUNDS = {"count": 0, "min_devices": 2, "quorum": 1, "deadline": DEADLINE, "interval": 1.0}


@dataclass
class Life:
    """The samples of one process: seconds, RSS in MB, open files and threads."""

    role: str
    pid: int
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)

    def look(self, now: float) -> None:
        rss = usage(self.pid).rss_mb
        if rss:
            files, threads = (len(os.listdir(f"/proc/{self.pid}/{k}")) for k in ("fd", "task"))
            self.samples.append((now, rss, files, threads))

    def settled(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The samples after the warm-up."""
        return np.array(self.samples[int(WARM_UP * len(self.samples)) :], dtype=float)

    @property
    def minutes(self) -> float:
        return (self.samples[-1][0] - self.samples[0][0]) / 60 if self.samples else 0.0

    def rise(self, column: int) -> float:
        """The rise of a line through the samples, over all of them."""
        found = self.settled()
        slope = np.polyfit(found[:, 0], found[:, column], 1)[0]
        return float(slope * (found[-1, 0] - found[0, 0]))


class Soak:
    """The processes, the operator, and the figures. The constructor only stores."""

    def __init__(self, folder: Path, broker: Broker, agents: int) -> None:
        self.folder, self.broker = folder, broker
        self.names = [f"device-{i}" for i in range(agents)]
        self.children: dict[str, Child] = {}
        self.lives: list[Life] = []
        self.sizes: list[dict[str, float]] = []
        self.events: Counter[str] = Counter()
        self.failed: list[str] = []
        self.paused: list[tuple[float, float]] = []

    def start(self) -> None:
        images = write_images(self.folder / "small.npz")
        where = {"host": self.broker.host, "port": self.broker.port, "wait": 30.0}
        data = {"source": "npz", "root": str(images)}
        common = {"federation": "soak", "state": "state", "broker": where}
        settings: dict[str, Any] = {**common, "data": data, "rounds": ROUNDS}
        self._add("coordinator", template(CoordinatorConfig, settings))
        for index, name in enumerate(self.names):
            part = {"split": "dirichlet:0.5", "devices": len(self.names), "index": index}
            settings = {**common, "device": name, "data": {**data, **part}}
            self._add(name, template(AgentConfig, settings))

    def _add(self, name: str, config: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        (folder / "config.toml").write_text(config)
        role = "coordinator" if name == "coordinator" else "agent"
        child = Child(service_command(role, folder / "config.toml"), folder / "log.txt")
        child.start()
        self.children[name] = child

    def stop(self) -> None:
        for child in self.children.values():
            child.kill()

    # What happens

    def command(self, *words: str) -> None:
        """Give an order with the command line, as an operator does."""
        config = str(self.folder / "coordinator" / "config.toml")
        program = [sys.executable, "-m", "fededge", *words, "--config", config]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        if done.returncode:
            self.failed.append(f"fededge {' '.join(words)}: {done.stderr.strip()[-200:]}")

    def kill(self, name: str) -> None:
        self.children[name].kill()
        self.children[name].start()

    def kill_trainer(self) -> None:
        trainer = trainer_of(self.children[self.names[0]].pid or 0)
        if trainer is not None:
            os.kill(trainer, 9)

    def restart_broker(self) -> None:
        self.broker.stop()
        self.broker.start()

    def pause(self) -> None:
        began = time.time()
        self.command("pause")
        time.sleep(PAUSED)
        self.command("resume")
        self.paused.append((began, time.time()))

    def drain(self) -> None:
        self.command("devices", "drain", self.names[0])
        time.sleep(PAUSED)
        self.command("devices", "release", self.names[0])

    def quarantine(self) -> None:
        self.command("devices", "quarantine", self.names[-1])
        time.sleep(PAUSED)
        self.command("devices", "release", self.names[-1])

    def roll_back(self) -> None:
        versions = Store(self.folder / "coordinator" / "state").history()
        self.command("rollback", "--to", versions[max(0, len(versions) - 4)].version)

    def script(self, rough: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        """The events, one after the other and again; `rough`: services die as well."""
        does: dict[str, Callable[[], None]] = {
            "pause and resume": self.pause,
            "kill an agent": lambda: self.kill(self.names[-1]),
            "drain and release": self.drain,
            "kill a trainer": self.kill_trainer,
            "rollback": self.roll_back,
            "quarantine and release": self.quarantine,
        }
        if rough:
            does["kill the coordinator"] = lambda: self.kill("coordinator")
            does["restart the broker"] = self.restart_broker
            does["kill the first agent"] = lambda: self.kill(self.names[0])
        return itertools.cycle(does.items())

    # Figures

    def pids(self) -> dict[str, int]:
        found = {name: child.pid for name, child in self.children.items()}
        found |= {"broker": self.broker.pid}
        found |= {f"trainer of {n}": trainer_of(found[n] or 0) for n in self.names}
        return {name: pid for name, pid in found.items() if pid}

    def look(self, now: float) -> None:
        """Take a sample of every process and of every size."""
        for role, pid in self.pids().items():
            life = next((one for one in self.lives if (one.role, one.pid) == (role, pid)), None)
            if life is None:
                life = Life(role, pid)
                self.lives.append(life)
            try:
                life.look(now)
            except OSError:
                continue  # it has just ended
        self.sizes.append({"rounds": float(self.rounds), **self._kilobytes()})

    @property
    def rounds(self) -> int:
        folder = self.folder / "coordinator" / "state"
        if not (folder / "journal.sqlite").exists():
            return 0
        history = Store(folder).history()
        return history[-1].rounds_done if history else 0

    def _kilobytes(self) -> dict[str, float]:
        box = self.folder / self.names[0]
        state = self.folder / "coordinator" / "state"
        journal, wal = size(state, "journal.sqlite"), size(state, "journal.sqlite-wal")
        return {
            "journal": journal,
            "the journal's WAL": wal,
            "coordinator's other files": size(state) - journal - wal,
            "coordinator's log": size(self.folder / "coordinator", "log.txt"),
            "an agent's state": size(box / "state"),
            "an agent's log": size(box, "log.txt"),
            "broker's folder": size(self.broker.folder),
        }

    def run(self, minutes: float, every: float) -> None:
        began = time.monotonic()
        events, rough, due = self.script(rough=True), True, began + 2 * every
        while (now := time.monotonic()) < began + 60 * minutes:
            self.look(now - began)
            if rough and now > began + 20 * minutes:
                events, rough = self.script(rough=False), False
            if now >= due and self.rounds:
                name, act = next(events)
                self.events[name] += 1
                act()
                due = time.monotonic() + every
            time.sleep(max(0.0, SAMPLE - (time.monotonic() - now)))
        self.look(time.monotonic() - began)

    def gaps(self) -> list[float]:
        """Seconds between two versions, less those of a pause."""
        records = Store(self.folder / "coordinator" / "state").rounds()
        dates = [record.date for record in records if record.date is not None]
        return [
            after - before - sum(max(0.0, min(after, e) - max(before, b)) for b, e in self.paused)
            for before, after in itertools.pairwise(dates)
        ]


def size(folder: Path, pattern: str = "**/*") -> float:
    """Kilobytes of a folder's files."""
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # it has just been removed
    return total / 1000


def report(soak: Soak, minutes: float) -> dict[str, Any]:
    """Print the figures and a verdict; return them."""
    longest = [one for one in soak.lives if one.minutes >= minutes / 4 and len(one.samples) > 10]
    print(f"{'process':24}{'min':>6}{'MB':>8}{'rise MB':>9}{'MB/h':>8}{'files':>7}{'threads':>9}")
    rows: list[dict[str, Any]] = []
    for life in longest:
        found = life.settled()
        mean, rise = float(found[:, 1].mean()), life.rise(1)
        hours = (found[-1, 0] - found[0, 0]) / 3600
        flat = rise <= max(RISE * mean, RISE_MB)
        files, threads = (f"{found[0, c]:.0f}-{found[:, c].max():.0f}" for c in (2, 3))
        print(
            f"{life.role:24}{life.minutes:6.1f}{mean:8.1f}{rise:9.2f}{rise / hours:8.2f}"
            f"{files:>7}{threads:>9}  {'flat' if flat else 'RISES'}"
        )
        rows.append({"process": life.role, "mb": mean, "rise_mb": rise, "flat": flat})
    half = soak.sizes[len(soak.sizes) // 3 :]
    rounds = half[-1]["rounds"] - half[0]["rounds"]
    print(f"\n{'files':28}{'kB at the end':>14}{'bytes a round':>15}")
    growth = {}
    for name in [*half[0]][1:]:
        growth[name] = 1000 * (half[-1][name] - half[0][name]) / max(rounds, 1)
        print(f"{name:28}{half[-1][name]:14.0f}{growth[name]:15.0f}")
    gaps = sorted(soak.gaps())
    stuck = sum(gap > LONGEST_GAP for gap in gaps)
    ended = [name for name, child in soak.children.items() if child.exit_code is not None]
    print(
        f"\n{soak.sizes[-1]['rounds']:.0f} rounds; between two versions {np.median(gaps):.1f} s in "
        f"the median, at most {gaps[-1]:.1f} s; {stuck} stuck (more than {LONGEST_GAP:.0f} s)"
    )
    print("; ".join(f"{name} {count}" for name, count in soak.events.items()))
    print("\n".join([*soak.failed, *(f"{name} has ended" for name in ended)]))
    return {"processes": rows, "bytes_a_round": growth, "gaps": gaps, "failed": soak.failed}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two events")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Broker(folder / "broker", "mosquitto", persistent=True) as broker:
            soak = Soak(folder, broker, flags.agents)
            try:
                soak.start()
                soak.run(flags.minutes, flags.every)
                found = report(soak, flags.minutes)
            finally:
                soak.stop()
    if flags.json:
        flags.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
