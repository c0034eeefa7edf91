"""Damaged and removed files: the real processes name the file, or lose nothing."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.cli import main
from fededge.storage.sealed import read_sealed
from fededge_agent.store.index import Index
from fededge_server.store import Store
from tests.integration.conftest import Federation, write_images

pytestmark = pytest.mark.slow

PATIENCE = 120.0
AT_ONCE = 4
"""Processes that start side by side."""

Damage = Callable[[Path], None]


def removed(*patterns: str) -> Damage:
    def damage(folder: Path) -> None:
        for path in found(folder, *patterns):
            path.unlink()

    return damage


def flipped(*patterns: str) -> Damage:
    """The bytes with one bit flipped in the middle."""

    def damage(folder: Path) -> None:
        for path in found(folder, *patterns):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    return damage


def private_state(folder: Path) -> None:
    """The file that the agent's index names."""
    names = ("agent.json", "agent.before.json")
    indices = [read_sealed(folder / "private" / name, Index) for name in names]
    index = max((one for one in indices if one is not None), key=lambda one: one.serial)
    assert index.private is not None
    flipped(f"private/{index.private.name}")(folder)


def found(folder: Path, *patterns: str) -> list[Path]:
    """The newest file of each pattern; there must be one."""
    return [max(folder.glob(pattern), key=lambda p: p.stat().st_mtime_ns) for pattern in patterns]


@dataclass(frozen=True)
class Case:
    """A damage to a service's folder, and the expected error: the file's name and the reason.

    `goes_on`: it must neither end nor begin anew.
    """

    damage: Damage
    says: str
    goes_on: bool = False


COORDINATOR = {
    "no journal": Case(removed("journal.sqlite"), "journal.sqlite: missing or empty, but run.json"),
    "no WAL": Case(removed("journal.sqlite-wal"), "journal.sqlite: "),
    "WAL": Case(flipped("journal.sqlite-wal"), "journal.sqlite: "),
    "no mark": Case(removed("run.json"), "run.json: missing or damaged; it is written", True),
    "mark": Case(flipped("run.json"), "run.json: missing or damaged; it is written anew", True),
    "no marks": Case(removed("run.json", "run.latest"), "run.json: missing or damaged, and so is"),
    "model": Case(flipped("models/000*[0-9a-f].safetensors"), ".safetensors: "),
    "memory": Case(flipped("models/*.state.safetensors"), ".state.safetensors: damaged, its SHA"),
}

AGENT = {
    "index": Case(
        flipped("private/agent.json"), "agent.json: missing or damaged; using the index in", True
    ),
    "no index": Case(
        removed("private/agent.json", "private/agent.before.json"),
        "private/agent.json: unreadable, and so is the one before; restore a backup",
    ),
    "no trust": Case(removed("trust.json"), "trust.json: missing, damaged or older than it", True),
    "trust": Case(flipped("trust.json"), "trust.json: missing, damaged or older than it was", True),
    "ledger": Case(flipped("ledger.json"), "ledger.json: missing or damaged; counting goes", True),
    "no ledger": Case(removed("ledger.json"), "ledger.json: missing or damaged; counting", True),
    "private": Case(private_state, "damaged; using the private state before it", True),
    "held model": Case(flipped("private/000*.safetensors"), "damaged; downloading it again", True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a coordinator and an agent that were killed in the middle of a round."""
    folder = tmp_path_factory.mktemp("killed")
    assert main(["init", "key", "--out", str(folder / "keys")]) == 0
    with Broker(folder / "broker", kind="mosquitto") as broker:
        where = {"host": broker.host, "port": broker.port, "wait": 10.0}
        federation = Federation(folder, where, write_images(folder / "small.npz"), "gates")
        coordinator = federation.coordinator(
            method="scaffold",
            rounds={"count": 1000, "min_devices": 1},
            signing_key=str(folder / "keys" / "signing.key"),
        )
        agent = federation.agent("box", devices=1, trusted_key=str(folder / "keys/signing.pub"))

        def done() -> bool:
            with contextlib.suppress(Exception):  # the journal may be empty yet
                return len(Store(federation.state("coordinator")).history()) > 3
            return False

        federation.wait_for(done, "three rounds")
        coordinator.kill()
        agent.kill()
    return folder


@dataclass
class Started:
    """A process on a damaged copy, with a broker of its own."""

    case: Case
    child: Child
    broker: Broker

    @property
    def log(self) -> str:
        return self.child.log.read_text()

    @property
    def over(self) -> bool:
        """Ended, or at the broker: a folder is read before."""
        return self.child.exit_code is not None or any(
            word in self.log for word in ("resuming after", "connected to")
        )


@contextlib.contextmanager
def started(folders: Path, name: str, kind: str, case: Case, place: Path) -> Iterator[Started]:
    copy = place / "copy"
    shutil.copytree(folders / name, copy, ignore=shutil.ignore_patterns("*.sock"))
    case.damage(copy / "state")
    with Broker(place / "broker", kind="mosquitto") as broker:
        config = copy / "config.toml"
        lines = [
            f"port = {broker.port}" if line.startswith("port = ") else line
            for line in config.read_text().splitlines()
        ]
        config.write_text("\n".join(lines))
        program = [sys.executable, "-m", "fededge", kind, "--config", str(config)]
        child = Child(program, place / "log.txt")
        child.start()
        try:
            yield Started(case, child, broker)
        finally:
            child.kill()


def check(folders: Path, name: str, kind: str, cases: list[Case], place: Path) -> None:
    """Start one process per case, and check its error or that it continues."""
    with contextlib.ExitStack() as stack:
        running = []
        for number, case in enumerate(cases):
            here = place / str(number)
            here.mkdir()
            running.append(stack.enter_context(started(folders, name, kind, case, here)))
        deadline = time.monotonic() + PATIENCE
        while not all(process.over for process in running) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in running:
            assert_told(process)


def assert_told(process: Started) -> None:
    assert "Traceback" not in process.log, process.log
    assert process.case.says in process.log, process.log
    if process.case.goes_on:
        assert process.child.exit_code is None, process.log
    else:
        assert process.child.exit_code == 2, process.log
        lines = [line for line in process.log.splitlines() if line.startswith("fededge: ")]
        assert len(lines) == 1, process.log
        assert process.case.says in lines[0]


def batches(cases: dict[str, Case]) -> list[list[str]]:
    names = [*cases]
    return [names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE)]


@pytest.mark.parametrize("names", batches(COORDINATOR), ids=", ".join)
def test_a_coordinator_names_what_is_damaged_or_loses_nothing(
    folders: Path, tmp_path: Path, names: list[str]
) -> None:
    check(folders, "coordinator", "coordinator", [COORDINATOR[n] for n in names], tmp_path)


@pytest.mark.parametrize("names", batches(AGENT), ids=", ".join)
def test_an_agent_names_what_is_damaged_or_loses_nothing(
    folders: Path, tmp_path: Path, names: list[str]
) -> None:
    check(folders, "box", "agent", [AGENT[name] for name in names], tmp_path)
