"""A closed federation of real processes, and an enrolled device that has turned hostile.

The broker, its certificates and the keys are made by `fededge init`, as docs/security.md says. Two
honest agents run all the time; every attack begins a run of its own, with a new coordinator.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fededge._internal.processes import Child
from fededge.cli import main
from fededge.config import BrokerConfig, DataConfig, ModelConfig, TrainingConfig
from fededge.data.local import experiment_data, model_spec, share_examples
from fededge.errors import StoreError
from fededge.flat import Layout, Vector
from fededge.methods import Hyper
from fededge.simulation import Setup, Simulation
from fededge.wire import tensors
from fededge_server.store import Progress, Store
from tests.integration.conftest import Federation
from tests.security.hostile_device import HostileDevice

__all__ = ["ACCOMPLICE", "GHOST", "HONEST", "ROGUE", "Fleet", "Run"]

NAME = "gates"
HONEST = ("gate-1", "gate-2")
ROGUE, ACCOMPLICE, GHOST = "rogue", "accomplice", "ghost"
"""The others are hostile too, or behave: they are whatever a test wants of them."""

ROUNDS = {"min_devices": 3, "deadline": 60.0, "backoff": 1.0}


class Fleet(Federation):
    """A broker that takes in nobody without a certificate; agents that trust the key alone."""

    def __init__(self, folder: Path, pki: Path, keys: Path, port: int, images: Path) -> None:
        super().__init__(folder, {}, images, NAME)
        self.pki, self.keys, self.port = pki, keys, port
        self.agents: dict[str, Child] = {}
        self.runs = 0

    def access(self, name: str) -> dict[str, Any]:
        """The broker settings of a machine with this name."""
        files = {"ca": "ca.crt", "certificate": f"{name}.crt", "key": f"{name}.key"}
        paths = {key: str(self.pki / file) for key, file in files.items()}
        return {"host": "127.0.0.1", "port": self.port, "wait": 10.0, "tls": True, **paths}

    def enlist(self, own_methods: list[str]) -> None:
        """Start the honest agents; they outlast every coordinator."""
        for index, device in enumerate(HONEST):
            self.agents[device] = self.agent(
                device,
                index,
                broker=self.access(device),
                trusted_key=str(self.keys / "signing.pub"),
                methods=own_methods,
                export={"variants": []},
            )

    @functools.cached_property
    def data(self) -> DataConfig:
        root, count = str(self.images), len(HONEST)
        return DataConfig(source="npz", root=root, split="dirichlet:0.5", devices=count)

    @functools.cached_property
    def model(self) -> dict[str, Any]:
        """The network, for a coordinator that has no examples to take it from."""
        spec = msgspec.to_builtins(model_spec(ModelConfig(), self.data))
        return {name: spec[name] for name in ("labels", "shape", "mean", "std")}

    @contextlib.contextmanager
    def run(self, rounds: dict[str, Any] | None = None, **sections: Any) -> Iterator[Run]:
        """A run of its own, in a new state folder, until the block ends."""
        self.runs += 1
        begun = Run(self, f"run-{self.runs}", {**ROUNDS, **(rounds or {})}, sections)
        begun.start()
        try:
            yield begun
        finally:
            begun.process.kill()

    def simulated(self, rounds: int, method: str = "fedavg", **training: Any) -> list[str]:
        """The SHA-256 of the models of a run in which the honest devices are alone."""
        spec, train, test = experiment_data(ModelConfig(), self.data)
        devices = dict(zip(HONEST, share_examples(train, self.data), strict=True))
        hyper = Hyper(**msgspec.structs.asdict(TrainingConfig(**training)))
        simulation = Simulation(Setup(method, spec, hyper, 0, devices, test.x, test.y))
        return [simulation.layout.sha256(done.model) for done in simulation.rounds(rounds)]


class Run:
    """A coordinator of a new run; it can be killed and started again."""

    def __init__(
        self, fleet: Fleet, name: str, rounds: dict[str, Any], sections: dict[str, Any]
    ) -> None:
        self.fleet = fleet
        self.name = name
        key = str(fleet.keys / "signing.key")
        usual: dict[str, Any] = {"broker": fleet.access("coordinator"), "signing_key": key}
        if "data" not in sections:
            usual |= {"data": {"source": "none"}, "model": fleet.model}
        self.sections = {**usual, "rounds": rounds, **sections}
        self.store = Store(fleet.state(name))

    def start(self) -> None:
        self.process = self.fleet.coordinator(self.name, **self.sections)

    @contextlib.contextmanager
    def hostile(self, device: str = ROGUE) -> Iterator[HostileDevice]:
        """An enrolled device that follows this run."""
        made = HostileDevice(BrokerConfig(**self.fleet.access(device)), NAME, device)
        made.start()
        try:
            made.wait(lambda: made.state and made.state.run == self.id, "a state of this run")
            made.states = [state for state in made.states if state.run == self.id]
            yield made
        finally:
            made.stop()

    @property
    def config(self) -> Path:
        return self.fleet.folder / self.name / "config.toml"

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    def kill(self) -> None:
        """As a crash or a power cut would."""
        self.process.kill()

    def again(self, **rounds: Any) -> None:
        self.sections["rounds"] = {**self.sections["rounds"], **rounds}
        self.start()

    def wait(self, condition: Callable[[], Any], what: str, patience: float = 90.0) -> Any:
        """The condition's value once it is true; the process must not end meanwhile."""

        def met() -> Any:
            assert self.process.exit_code is None, self.process.said(30)
            return condition()

        return self.fleet.wait_for(met, what, patience)

    def ends(self) -> None:
        """All rounds are done, by the process that began them."""
        assert self.fleet.ended(self.process) == 0, self.process.said(30)

    def status(self, capsys: Any) -> dict[str, Any]:
        """The output of `fededge status`."""
        capsys.readouterr()
        assert main(["status", "--config", str(self.config), "--json"]) == 0
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    # The journal's word

    @property
    def id(self) -> str:
        if not self.history():
            return ""
        return str(self._rows("SELECT value FROM facts WHERE name = 'run'")[0][0])

    def history(self) -> list[Progress]:
        with contextlib.suppress(StoreError):  # it may be empty yet
            return self.store.history()
        return []

    @property
    def rounds_done(self) -> int:
        history = self.history()
        return history[-1].rounds_done if history else -1

    @property
    def hashes(self) -> list[str]:
        """The hashes of all versions but the first, which no update led to."""
        return [progress.sha256 for progress in self.history()[1:]]

    def merged(self) -> list[dict[str, dict[str, float]]]:
        """The scalars of each device in each round that was made of updates."""
        rows = self._rows("SELECT reports FROM rounds WHERE number > 0 ORDER BY number")
        return [json.loads(reports) for (reports,) in rows]

    def refused(self) -> list[tuple[str, ...]]:
        """Devices and reasons."""
        return self._rows("SELECT device, reason FROM refused ORDER BY entry")

    def quarantined(self) -> set[str]:
        return {device for (device,) in self._rows("SELECT device FROM quarantined")}

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.store.path)) as journal:
            return journal.execute(query).fetchall()

    def vector(self, version: str, layout: Layout) -> Vector:
        """The model of a version, as it is on the coordinator's disk."""
        return tensors.decode(layout, self.store.model(version).read_bytes())["model"]
