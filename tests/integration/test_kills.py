"""`kill -9` of the coordinator, of an agent and of the broker at random moments of twenty rounds.

The run must end by itself, and with the weights of a run that nobody disturbed. Two runs here;
`make kills RUNS=20` makes more, each with its own moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fededge.broker.local import Broker
from tests.integration.conftest import Federation
from tests.integration.test_federation import rounds_done, versions

pytestmark = pytest.mark.slow

ROUNDS = 20
DEVICES = 3
RUNS = int(os.environ.get("FEDEDGE_KILL_RUNS", "2"))


class Run:
    """A federation on a broker of its own, whose processes can be killed and are started again."""

    def __init__(self, folder: Path, images: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self.broker = Broker(folder / "broker", kind="mosquitto")
        self.broker.start()
        where = {"host": self.broker.host, "port": self.broker.port, "wait": 30.0}
        self.federation = Federation(folder, where, images, name)
        self.start_coordinator()
        for index in range(DEVICES):
            self.start_agent(index)

    def start_coordinator(self) -> None:
        self.coordinator = self.federation.coordinator(
            method="scaffold",  # its control variates must survive on both sides
            rounds={"count": ROUNDS, "min_devices": DEVICES, "quorum": DEVICES},
            training={"epochs": 2},
        )

    def start_agent(self, index: int) -> None:
        agent = self.federation.agent(f"box-{index}", index=index, devices=DEVICES)
        self.agents = {**getattr(self, "agents", {}), index: agent}

    def kill(self, victim: str, draw: random.Random) -> None:
        """End it as a power cut would, and start it again as its service manager would."""
        index = draw.randrange(DEVICES)
        again: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "coordinator": (self.coordinator.kill, self.start_coordinator),
            "agent": (self.agents[index].kill, lambda: self.start_agent(index)),
            "broker": (self.broker.kill, self.broker.start),
        }
        end, start = again[victim]
        end()
        time.sleep(draw.uniform(0.0, 1.0))
        start()

    def reach(self, rounds: int) -> None:
        """Wait until so many rounds are done."""
        federation = self.federation
        federation.wait_for(lambda: rounds_done(federation) >= rounds, f"round {rounds}")

    def final(self) -> str:
        """The last version, once the coordinator has ended by itself."""
        assert self.federation.ended(self.coordinator) == 0, self.coordinator.said(20)
        return versions(self.federation)[-1]

    def end(self) -> None:
        for child in self.federation.children:
            child.kill()
        self.broker.stop()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Iterator[Callable[[str], Run]]:
    made: list[Run] = []

    def make(name: str) -> Run:
        while made:
            made.pop().end()
        made.append(Run(tmp_path_factory.mktemp("kills") / name, images, "kills"))
        return made[-1]

    yield make
    for run in made:
        run.end()


@pytest.fixture(scope="module")
def undisturbed(runs: Callable[[str], Run]) -> str:
    return runs("undisturbed").final()


@pytest.mark.parametrize("seed", range(RUNS))
def test_killed_processes_lose_nothing(
    seed: int, runs: Callable[[str], Run], undisturbed: str
) -> None:
    draw = random.Random(seed)
    victims = ["coordinator", "agent", "broker"]
    draw.shuffle(victims)
    moments = sorted(draw.sample(range(1, ROUNDS - 1), len(victims)))
    run = runs(f"run-{seed}")
    for victim, moment in zip(victims, moments, strict=True):
        run.reach(moment)
        time.sleep(draw.uniform(0.0, 1.0))
        run.kill(victim, draw)
    assert run.final() == undisturbed
