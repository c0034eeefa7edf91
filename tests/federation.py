"""A federation in memory: the real machines and messages, a broker that misbehaves, no clock.

Whatever happens is drawn from one seed: which message comes next, what is lost, doubled or
overtaken, who is killed between which two commands. What the run did is kept for the tests.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from fededge.config import RoundsConfig
from tests.shells import Agent, Coordinator, KilledError, Process

__all__ = ["Broker", "Faults", "Federation", "undisturbed"]


@dataclass(frozen=True)
class Faults:
    """How likely what is, at each step, and for how many steps."""

    steps: int = 600
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    kill: float = 0.0
    kill_between_commands: float = 0.0
    reconnect: float = 0.0
    lose_broker: float = 0.0
    lose_files: float = 0.0


NONE = Faults(steps=0)


@dataclass
class Broker:
    """Topics with retained messages, and a queue for each client that outlives its connection."""

    retained: dict[str, bytes] = field(default_factory=dict)
    filters: dict[str, set[str]] = field(default_factory=dict)
    queues: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)

    def publish(self, topic: str, message: bytes, retain: bool = False) -> None:
        if retain:
            self.retained[topic] = message
        for client, filters in self.filters.items():
            if any(matches(pattern, topic) for pattern in filters):
                self.queues[client].append((topic, message))

    def subscribe(self, client: str, pattern: str) -> None:
        self.filters.setdefault(client, set()).add(pattern)
        queue = self.queues.setdefault(client, [])
        queue += [(t, m) for t, m in self.retained.items() if m and matches(pattern, t)]

    def unsubscribe(self, client: str, pattern: str) -> None:
        self.filters[client].discard(pattern)

    def lose_everything(self) -> None:
        self.retained.clear()
        for queue in self.queues.values():
            queue.clear()


def matches(pattern: str, topic: str) -> bool:
    ours, theirs = pattern.split("/"), topic.split("/")
    return len(ours) == len(theirs) and all(
        a in ("+", b) for a, b in zip(ours, theirs, strict=True)
    )


class Federation:
    """The scheduler, and what the run did."""

    def __init__(self, seed: int, devices: int, config: RoundsConfig, faults: Faults) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.broker = Broker()
        self.merges: list[tuple[str, dict[str, str]]] = []
        self.trained: Counter[tuple[str, str]] = Counter()
        self.origin: dict[str, tuple[str, str]] = {}
        self.settled: dict[tuple[str, str], bool] = {}
        self.kills = 0
        self.coordinator = Coordinator(self, config)
        self.agents = [Agent(self, f"device-{index}") for index in range(devices)]
        self.processes: list[Process] = [self.coordinator, *self.agents]

    def run(self, patience: int = 10_000) -> None:
        """Some steps with faults, then none: the rounds must end within so many more."""
        for process in self.processes:
            process.start()
        for _ in range(self.faults.steps):
            if not self.coordinator.done:
                self.step()
        self.faults = NONE
        for _ in range(patience):
            if self.coordinator.done:
                return
            self.calm_step()
        raise AssertionError("the federation is stuck")

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def fuse(self) -> None:
        if self.chance(self.faults.kill_between_commands):
            self.kills += 1
            raise KilledError

    def loses_file(self) -> bool:
        return self.chance(self.faults.lose_files)

    def step(self) -> None:
        faults = self.faults
        process = self.rng.choice(self.processes)
        if not process.alive:
            if self.chance(0.2):
                process.start()
        elif self.chance(faults.kill):
            self.kills += 1
            process.die()
        elif self.chance(faults.reconnect):
            process.connect()
        elif self.chance(faults.lose_broker):
            self.broker.lose_everything()
            for other in self.processes:
                if other.alive:
                    other.connect()
        elif self.chance(0.1):
            self.now += self.rng.choice((0.1, 1.0, 5.0))
            process.guarded(process.tick)
        elif process.jobs and self.chance(0.3):
            process.guarded(process.jobs.pop(0))
        else:
            self.deliver(process)

    def calm_step(self) -> None:
        """What is due, in order; time passes only when nothing is."""
        busy = False
        for process in self.processes:
            if not process.alive:
                process.start()
            if self.broker.queues[process.name]:
                self.deliver(process)
            elif process.jobs:
                process.guarded(process.jobs.pop(0))
            else:
                continue
            busy = True
        if not busy:
            self.now += 1.0
            for process in self.processes:
                process.guarded(process.tick)

    def deliver(self, process: Process) -> None:
        """One message, perhaps out of turn, twice or never.

        As with a real broker, the messages of one topic keep their order, and the last word on a
        topic of state is not lost: it is retained.
        """
        queue = self.broker.queues[process.name]
        if not queue:
            return
        topic, _ = self.rng.choice(queue) if self.chance(self.faults.reorder) else queue[0]
        index = next(i for i, waiting in enumerate(queue) if waiting[0] == topic)
        message = queue[index][1]
        if not self.chance(self.faults.duplicate):
            del queue[index]
        if self.chance(self.faults.drop) and not topic.endswith(("/state", "/status")):
            return
        if not process.guarded(lambda: process.hear(topic, message)):
            queue.insert(0, (topic, message))  # not acknowledged: it comes again


def undisturbed(devices: int, config: RoundsConfig) -> str:
    """The last version of a run in which nothing goes wrong."""
    federation = Federation(0, devices, config, NONE)
    federation.run()
    return federation.coordinator.versions[-1]
