"""Real processes on a real broker: what the integration tests start and stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import AgentConfig, CoordinatorConfig, template
from fededge.data import embedded
from tests.integration.attacker import Attacker
from tests.service_commands import service_command

PATIENCE = 90.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), kind="mosquitto") as running:
        yield running


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "small.npz")


def write_images(path: Path) -> Path:
    """A small real data set: 40 training and 10 test images of each class."""
    train, test = embedded()
    parts: dict[str, Any] = {}
    for suffix, whole, count in (("", train, 40), ("_test", test, 10)):
        chosen = [(whole.y == c).nonzero().flatten()[:count] for c in range(10)]
        part = whole.subset(np.concatenate([index.numpy() for index in chosen]))
        parts |= {f"x{suffix}": part.x.numpy(), f"y{suffix}": part.y.numpy()}
    np.savez_compressed(path, **parts)
    return path


class Federation:
    """Writes configurations, starts processes, and ends them all."""

    def __init__(self, folder: Path, broker: dict[str, Any], images: Path, name: str) -> None:
        self.folder = folder
        self.broker = broker
        self.images = images
        self.name = name
        self.children: list[Child] = []

    def coordinator(self, name: str = "coordinator", **sections: Any) -> Child:
        data = {"source": "npz", "root": str(self.images)}
        values = {"federation": self.name, "state": "state", "broker": self.broker, "data": data}
        return self._start(name, "coordinator", template(CoordinatorConfig, values | sections))

    def agent(self, device: str, index: int = 0, devices: int = 2, **sections: Any) -> Child:
        data = {
            "source": "npz",
            "root": str(self.images),
            "split": "dirichlet:0.5",
            "devices": devices,
            "index": index,
        }
        folder = sections.pop("folder", device)
        values: dict[str, Any] = {"federation": self.name, "device": device, "state": "state"}
        values |= {"broker": self.broker, "data": data}
        return self._start(folder, "agent", template(AgentConfig, values | sections))

    def _start(self, name: str, command: str, config: str) -> Child:
        return self.begin(name, lambda path: service_command(command, path), config)

    def begin(self, name: str, program: Callable[[Path], list[str]], config: str) -> Child:
        """Start a program with this configuration, in a folder of its own."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        path = folder / "config.toml"
        path.write_text(config)
        child = Child(program(path), folder / "log.txt")
        child.start()
        self.children.append(child)
        return child

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def wait_for(self, condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """The condition's value once it is true; fails with the processes' logs otherwise."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.05)
        logs = "\n\n".join(f"{child.log}:\n{child.said(30)}" for child in self.children)
        pytest.fail(f"waited {patience:.0f} s for {what}\n{logs}")

    def ended(self, child: Child) -> int:
        """Wait for a process to end; its exit code."""
        self.wait_for(lambda: child.exit_code is not None, f"{child.log.parent.name} to end")
        assert child.exit_code is not None
        return child.exit_code


@pytest.fixture
def federation(
    tmp_path: Path, broker: Broker, images: Path, request: pytest.FixtureRequest
) -> Iterator[Federation]:
    where = {"host": broker.host, "port": broker.port, "wait": 5.0}
    made = Federation(tmp_path, where, images, f"test-{abs(hash(request.node.nodeid)):x}")
    yield made
    for child in made.children:
        child.kill()


@pytest.fixture
def attacker(federation: Federation) -> Iterator[Attacker]:
    made = Attacker(federation)
    yield made
    made.session.stop()
