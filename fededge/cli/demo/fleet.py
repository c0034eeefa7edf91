"""A federation on this machine: broker, coordinator and agents, each in its own process."""

from __future__ import annotations

import contextlib
import queue
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from fededge import methods, models
from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import (
    AgentConfig,
    BrokerConfig,
    CoordinatorConfig,
    DataConfig,
    ModelConfig,
    template,
)
from fededge.errors import ConfigError, FedEdgeError
from fededge.hardware import choose
from fededge.transport.session import Incoming, Session
from fededge.wire import reports
from fededge.wire.messages import Report, State, Status, decode
from fededge.wire.topics import Topics

__all__ = ["Fleet", "FleetOptions", "Watcher"]

SPLIT = "dirichlet:0.1"
FEDERATION = "demo"
MARK = "fededge-demo.txt"
POLL = 0.2
LAST_EXPORT = 60.0


class Watcher(Protocol):
    """Receives what the federation publishes while it runs."""

    def status(self, device: str, status: Status) -> None: ...
    def state(self, state: State) -> None: ...
    def report(self, device: str, report: Report) -> None: ...


@dataclass(frozen=True)
class FleetOptions:
    method: str
    rounds: int
    agents: int
    seed: int
    source: str
    root: str
    folder: Path
    broker: Literal["auto", "mosquitto", "python"] = "auto"
    device: str = "cpu"
    threads: int = 0
    precision: str = "float32"
    model: str = "lenet"

    @property
    def hardware(self) -> dict[str, Any]:
        """The section of both sides' configurations."""
        return {"device": self.device, "threads": self.threads, "precision": self.precision}


class Fleet:
    """A federation of processes: `run` starts them, waits for the rounds, and ends them."""

    def __init__(self, options: FleetOptions) -> None:
        self.options = options
        self.method = methods.absolute_paths(options.method, Path.cwd())
        self.model = models.absolute_reference(options.model, Path.cwd())
        self.devices = [f"device-{index + 1}" for index in range(options.agents)]
        self.topics = Topics(FEDERATION)

    def run(self, watcher: Watcher) -> None:
        self._check()
        self._clear_folder()
        folder = self.options.folder
        with Broker(folder / "broker", self.options.broker) as broker:
            self.broker = BrokerConfig(
                host=broker.host, port=broker.port, protocol=broker.protocol, wait=30.0
            )
            self._write_configs()
            with self._processes() as children:
                self._watch(children, watcher)

    def device_folder(self, device: str) -> Path:
        return self.options.folder / device

    def data(self, index: int) -> DataConfig:
        """Return the data section of one agent."""
        options = self.options
        section = {
            "source": options.source,
            "root": options.root,
            "split": SPLIT,
            "devices": options.agents,
            "index": index,
            "seed": options.seed,
        }
        return msgspec.convert(section, DataConfig)

    def _check(self) -> None:
        """Refuse wrong options before anything is started."""
        options = self.options
        models.check_configured(self.model)
        method = methods.method(options.method)
        if models.in_zoo(self.model):  # else the coordinator checks it
            method.needs(models.probe_network(self.model, ModelConfig().head))
        for name, value, least in (("agents", options.agents, 1), ("rounds", options.rounds, 1)):
            if not least <= value <= 1000:
                raise ConfigError(f"--{name} {value}: must be {least} to 1000")
        if not 0 <= options.seed <= 2**53:
            raise ConfigError(f"--seed {options.seed}: must be 0 to {2**53}")
        if not 0 <= options.threads <= 1024:
            raise ConfigError(f"--threads {options.threads}: must be 0 to 1024")
        choose(**options.hardware)

    def _clear_folder(self) -> None:
        """Empty the folder; only an earlier demo's files are removed."""
        folder = self.options.folder
        if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
            raise ConfigError(f"--out {folder}: not empty, and not made by a demo; choose another")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            (folder / MARK).write_text("Made by `fededge demo`, which clears this folder.\n")
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be made ({error.strerror})") from None

    def _write_configs(self) -> None:
        options = self.options
        broker = msgspec.structs.asdict(self.broker)
        common = {
            "federation": FEDERATION,
            "state": ".",
            "broker": broker,
            "hardware": options.hardware,
        }
        coordinator = {
            **common,
            "method": self.method,
            "seed": options.seed,
            "rounds": {"count": options.rounds, "min_devices": options.agents},
            "data": {"source": options.source, "root": options.root},
            "model": {"name": self.model},
        }
        self._write_config("coordinator", template(CoordinatorConfig, coordinator))
        nets = (self.model,) if models.is_reference(self.model) else ()
        for index, device in enumerate(self.devices):
            data = msgspec.structs.asdict(self.data(index))
            own = tuple(methods.references(self.method))
            agent = {**common, "device": device, "methods": own, "networks": nets, "data": data}
            self._write_config(device, template(AgentConfig, agent))

    def _write_config(self, name: str, text: str) -> None:
        folder = self.options.folder / name
        folder.mkdir()
        (folder / "config.toml").write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def _processes(self) -> Iterator[dict[str, Child]]:
        """Start the coordinator and the agents; end all of them on exit, also after errors."""
        children: dict[str, Child] = {}
        try:
            for name in ("coordinator", *self.devices):
                folder = self.options.folder / name
                role = ["agent"]
                if name == "coordinator":
                    role = ["coordinator", "--exit-when-done"]
                child = Child(
                    [
                        *(sys.executable, "-m", "fededge", *role),
                        *("--config", str(folder / "config.toml")),
                    ],
                    folder / "log.txt",
                )
                children[name] = child
                child.start()
            yield children
            for child in children.values():
                child.terminate()
            for child in children.values():
                child.stop(LAST_EXPORT)
        finally:
            for child in children.values():
                child.kill()

    def _watch(self, children: dict[str, Child], watcher: Watcher) -> None:
        """Pass published messages to the watcher until the coordinator has ended successfully."""
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        session = Session(self.broker, f"fededge-{FEDERATION}-watcher", inbox)
        for topic in (
            self.topics.state,
            self.topics.device("+", "status"),
            self.topics.device("+", "report"),
        ):
            session.subscribe(topic)
        session.start()
        try:
            while children["coordinator"].exit_code is None:
                self._check_processes(children)
                self._pass_on(inbox, watcher)
            if children["coordinator"].exit_code != 0:
                self._check_processes(children)
            self._pass_on(inbox, watcher)
        finally:
            session.stop()

    def _pass_on(self, inbox: queue.SimpleQueue[Any], watcher: Watcher) -> None:
        deadline = time.monotonic() + POLL
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = inbox.get(timeout=left)
            except queue.Empty:
                return
            if not isinstance(event, Incoming):
                continue
            event.ack()
            address = self.topics.parse(event.topic)
            if address.kind == "state":
                watcher.state(decode(event.payload, State))
            elif address.kind == "status":
                status = decode(event.payload, Status)
                if status.problem:  # every agent has it: no round would ever begin
                    raise FedEdgeError(f"{address.device} cannot take part: {status.problem}")
                watcher.status(address.device, status)
            elif address.kind == "report":
                watcher.report(address.device, reports.split(event.payload)[0])

    def _check_processes(self, children: dict[str, Child]) -> None:
        """Raise an error if a process has failed."""
        for name, child in children.items():
            if child.exit_code not in (None, 0):
                raise FedEdgeError(
                    f"{name} stopped with exit code {child.exit_code}; "
                    f"the end of {child.log}: {' | '.join(child.said().splitlines())}"
                )
