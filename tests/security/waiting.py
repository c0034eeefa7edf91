"""A coordinator that waits for devices, a real Mosquitto, and a client that says what it likes."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import BrokerConfig, CoordinatorConfig, template
from fededge.transport.session import Session
from fededge.wire.messages import Status, encode
from fededge.wire.topics import Topics
from tests.service_commands import service_command

__all__ = ["TOPICS", "Site", "status", "waiting"]

TOPICS = Topics("gates")
PATIENCE = 90.0


class Site:
    """A coordinator that waits for devices, and a client that says what it likes."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        where: dict[str, Any] = {"host": broker.host, "port": broker.port, "wait": 10.0}
        model = {"labels": ["a", "b"], "shape": [1, 28, 28], "mean": [0.5], "std": [0.5]}
        values: dict[str, Any] = {"federation": "gates", "state": "state", "broker": where}
        values |= {"model": model, "data": {"source": "none"}, "rounds": {"min_devices": 2}}
        self.config = folder / "coordinator.toml"
        self.config.write_text(template(CoordinatorConfig, values))
        self.coordinator = Child(service_command("coordinator", self.config), folder / "log.txt")
        self.session = Session(BrokerConfig(**where), "hostile", queue.SimpleQueue())

    def says(self, device: str, kind: str, payload: bytes, retain: bool = False) -> None:
        self.session.publish(TOPICS.device(device, kind), payload, retain)

    def reaches(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.coordinator.exit_code is None, self.coordinator.said(30)
            assert time.monotonic() < deadline, self.coordinator.said(30)
            time.sleep(0.1)

    def mark(self, word: str) -> None:
        """Return when the coordinator has logged a last, honest word: all before it was handled."""
        self.says("honest", "status", status("honest", word), retain=True)
        self.reaches(lambda: f"honest: cannot take part: {word}" in self.log)

    @property
    def log(self) -> str:
        return self.coordinator.log.read_text() if self.coordinator.log.exists() else ""


def status(device: str, problem: str) -> bytes:
    return encode(Status("1a" * 16, True, device=device, activity="unable", problem=problem))


@contextlib.contextmanager
def waiting(folder: Path) -> Iterator[Site]:
    """The broker runs and the client is connected; the coordinator is to be started."""
    with Broker(folder / "broker", kind="mosquitto") as broker:
        made = Site(folder, broker)
        made.session.start()
        try:
            yield made
        finally:
            made.session.stop()
            made.coordinator.kill()
