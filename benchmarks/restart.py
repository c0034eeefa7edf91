"""The start of a coordinator: seconds from exec to its presence and its state at the broker.

python benchmarks/restart.py [--restarts 5] [--evaluate]

One Mosquitto, and one coordinator that is started, ended with SIGTERM and started again on the same
state folder. The first start builds the network with torch; the others find its layout beside the
journal. CPU seconds are the coordinator's own; `numpy` is a process that only imports numpy, in
turns with them, as the yardstick of the machine. With `--evaluate` the coordinator has examples.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from process_figures import usage
from services import service_command

from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import CoordinatorConfig, template
from fededge.wire.topics import Topics

TOPICS = Topics("restart")
MODEL = {"labels": [*"0123456789"], "shape": [1, 28, 28], "mean": [0.5], "std": [0.5]}
TIMEOUT = 120.0


class Ear:
    """Notes when each topic of the coordinator was published last."""

    def __init__(self, broker: Broker) -> None:
        self.heard: dict[str, float] = {}
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        client.on_message = self._hear
        client.connect(broker.host, broker.port)
        client.subscribe([(f"{TOPICS.coordinator}/status", 1), (TOPICS.state, 1)])
        client.loop_start()
        self.client = client

    def _hear(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        if not message.retain:
            self.heard[message.topic] = time.monotonic()

    def wait(self, *topics: str) -> list[float]:
        deadline = time.monotonic() + TIMEOUT
        while not self.heard.keys() >= {*topics}:
            if time.monotonic() > deadline:
                raise SystemExit(f"the coordinator was not there after {TIMEOUT:.0f} s")
            time.sleep(0.002)
        return [self.heard[topic] for topic in topics]


def start_once(program: list[str], log: Path, ear: Ear) -> tuple[float, float, float]:
    """Return the seconds to presence and state, and the CPU seconds until then."""
    ear.heard.clear()
    child = Child(program, log)
    began = time.monotonic()
    child.start()
    presence, state = ear.wait(f"{TOPICS.coordinator}/status", TOPICS.state)
    assert child.pid is not None, child.said(20)
    cpu = usage(child.pid).cpu_s
    child.stop(30.0)
    return presence - began, state - began, cpu


def numpy_cpu() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--evaluate", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "broker", "mosquitto") as it:
        config: dict[str, Any] = {"federation": "restart", "state": "state"}
        config |= {"broker": {"host": it.host, "port": it.port, "wait": 60.0}}
        data = "embedded" if flags.evaluate else "none"
        config |= {"data": {"source": data}, "model": {} if flags.evaluate else MODEL}
        path = Path(name) / "coordinator.toml"
        path.write_text(template(CoordinatorConfig, config))
        program = service_command("coordinator", path)
        ear, rows, numpy = Ear(it), [], []
        for _ in range(1 + flags.restarts):
            rows.append(start_once(program, Path(name) / "coordinator.log", ear))
            numpy.append(numpy_cpu())
    print("             presence s   state s   CPU s   numpy's CPU s")
    medians = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
    for label, row, yard in (
        ("first start", rows[0], numpy[0]),
        ("restart", medians, statistics.median(numpy[1:])),
    ):
        print(f"{label:12} {row[0]:10.2f} {row[1]:9.2f} {row[2]:7.2f} {yard:15.2f}")


if __name__ == "__main__":
    main()
