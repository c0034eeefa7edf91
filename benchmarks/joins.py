"""The cost of a fleet's size in the coordinator's state machine: joins, and a round's events.

python benchmarks/joins.py [--devices 1000 3000 10000] [--participants 1000] [--json FILE]

CPU seconds of the machine alone: no broker, no disk. `join`: devices announce themselves while no
round is open; `join, open`: the same while a round is open that asks everybody. Then one round with
all of them present: `open` selects its participants, the others are the milliseconds of one event
each, with the view that the shell takes after it. A cost that grows with the fleet shows in its
column.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from fededge.config import RoundsConfig
from fededge.wire import chunks
from fededge.wire.messages import Report, Status
from fededge_server.machine.events import (
    Check,
    Event,
    Merge,
    MergeDone,
    Remember,
    Remembered,
    ReportCame,
    StatusCame,
    Stored,
    Tick,
    UpdateChunkCame,
)
from fededge_server.machine.facts import RunFacts
from fededge_server.machine.rounds.rounds import Rounds

LAYOUT = "ab" * 32
V0, V1 = "000000-0123456789abcdef", "000001-fedcba9876543210"
FACTS = RunFacts("run", 7, LAYOUT, frozenset({"examples"}), 1024, 10_000, norm_factor=10.0)
UPDATE = bytes(1000)
MANIFEST = chunks.manifest(UPDATE, 1024)
CHUNK = chunks.pack(UPDATE, MANIFEST, 0)


class Driver:
    """A machine whose commands are answered at once, as a disk without latency would."""

    def __init__(self, **config: Any) -> None:
        self.machine = Rounds(FACTS, RoundsConfig(count=10, deadline=600.0, **config), 0, V0)
        self.now = 0.0
        self.seconds = 0.0
        self.merge: Merge | None = None

    def __call__(self, event: Event) -> None:
        self.now += 0.001
        began = time.process_time()
        commands = self.machine.handle(event, self.now)
        self.machine.view(self.now)
        self.seconds += time.process_time() - began
        for command in commands:
            match command:
                case Remember(_, version, asked, known):
                    self(Remembered(version, asked, known))
                case Check(device, report):
                    began = time.process_time()
                    self.machine.limit(1.0)
                    self.seconds += time.process_time() - began
                    self(Stored(device, report, 1.0))
                case Merge():
                    self.merge = command

    def timed(self, events: Sequence[Event]) -> float:
        """CPU seconds of these events, and of those that answer their commands."""
        before = self.seconds
        for event in events:
            self(event)
        return self.seconds - before


def status(device: str, activity: Literal["ready", "training"] = "ready") -> StatusCame:
    values: dict[str, Any] = {"instance": "ab" * 16, "online": True, "device": device}
    return StatusCame(device, Status(**values, activity=activity, layout=LAYOUT, examples=5))


def report(device: str) -> ReportCame:
    return ReportCame(device, Report(device, "run", V0, LAYOUT, MANIFEST, {"examples": 5.0}))


def measure(devices: int, participants: int) -> dict[str, float]:
    """Join, once to a waiting and once to an open round; then play a round."""
    names = [f"box-{index:05d}" for index in range(devices)]
    late = Driver(min_devices=1)
    row = {"devices": float(devices), "join, open s": late.timed([status(n) for n in names])}
    driver = Driver(min_devices=devices, participants=participants)
    row["join s"] = driver.timed([status(name) for name in names[:-1]])
    row["open s"] = driver.timed([status(names[-1])])
    asked = [*driver.machine.participants.invited]
    each: dict[str, Callable[[str], Event]] = {
        "training": lambda device: status(device, "training"),
        "report": report,
        "update": lambda device: UpdateChunkCame(device, V0, CHUNK),
    }
    for name, event in each.items():
        row[f"{name} ms"] = 1e3 * driver.timed([event(d) for d in asked[:-1]]) / (len(asked) - 1)
    row["tick ms"] = 1e3 * driver.timed([Tick()] * 20) / 20
    for event in each.values():
        driver(event(asked[-1]))
    assert driver.merge is not None, "the round is not over"
    row["merged s"] = driver.timed([MergeDone(V1, tuple(driver.merge.reports))])
    return {name: round(figure, 4) for name, figure in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--participants", type=int, default=1000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    rows = [measure(devices, flags.participants) for devices in flags.devices]
    print("  ".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{figure:12g}" for figure in row.values()))
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
