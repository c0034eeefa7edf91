"""A federation under a simulated clock, network and disk: one seed decides all that happens.

Some steps with faults, then none. In each the world picks who acts and what goes wrong: messages
lost, doubled and overtaken, links cut, the broker restarted, processes killed between two commands
or two writes, with and without the loss of what was not synced, disks full, clocks that leap,
boxes that rest, an operator who gives orders.
Hostile devices do not stop when the faults do.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fededge.credentials.signing_keys import make_keys
from fededge.errors import WireError
from fededge.transport.session import Delivered
from fededge.wire import reports
from fededge.wire.messages import Reply, State, decode
from fededge.wire.topics import Topics
from tests.faults.disk import Disk
from tests.faults.hostile import HostileDevice, Plot
from tests.faults.network import Broker, Packet, first_of_topic
from tests.faults.operator import Operator
from tests.faults.oracle import BrokenError, Oracle
from tests.faults.processes import (
    FEDERATION,
    KilledError,
    Process,
    SimulatedAgent,
    SimulatedCoordinator,
)

__all__ = ["NONE", "Faults", "Kind", "World"]

PATIENCE = 20_000
"""Steps without faults within which the federation must be done."""


@dataclass(frozen=True)
class Faults:
    """The probability of each fault at a step, and the number of steps.

    `crowd`: another event waits in the inbox, so the coordinator's group stays open.
    """

    steps: int = 400
    lose: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    kill: float = 0.0
    kill_at_boundary: float = 0.0
    reconnect: float = 0.0
    partition: float = 0.0
    restart_broker: float = 0.0
    fill_disk: float = 0.0
    free_disk: float = 0.0
    leap: float = 0.0
    slow: float = 0.0
    rot: float = 0.0
    rest: float = 0.0
    order: float = 0.0
    crowd: float = 0.8


NONE = Faults(steps=0, crowd=0.0)
FORGETS = "broker restart without memory"


@dataclass(frozen=True)
class Kind:
    """A federation: its coordinator's configuration, its devices, and how many are hostile.

    A `turn` takes so many seconds, from and to.
    """

    config: dict[str, Any]
    devices: int = 4
    hostile: int = 0
    turn: tuple[float, float] = (0.0, 0.0)


@dataclass
class World:
    """The scheduler: who acts next, and what happens to them.

    Once there are no more faults, the rounds that are left must be done within `limit` seconds.
    """

    seed: int
    kind: Kind
    faults: Faults = NONE
    trace: Callable[[str], None] | None = None
    limit: float = math.inf
    now: float = 0.0
    calm_since: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        folds, rots = self.kind.config["rounds"].folds, bool(self.faults.rot)
        self.names = [f"device-{i}" for i in range(self.kind.devices)]
        hostile = self.rng.sample(self.names, self.kind.hostile)
        self.oracle = Oracle(folds, rots, frozenset(hostile))
        self.broker = Broker(self.carried)
        self.topics = Topics(FEDERATION)
        self.disk = Disk(self.rng, self.write)

    def run(self) -> str:
        """Run to the end; the last version."""
        with self.disk.mounted(), mock.patch("uuid.uuid4", self.identity):
            try:
                self.populate()
                return self.live()
            finally:
                for process in self.processes:
                    if process.service is not None:
                        process.service.abandon()

    def identity(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def populate(self) -> None:
        self.keys = self.disk.folder("keys")
        with mock.patch.object(self.disk, "before_write"):  # by a person's hand
            make_keys(self.keys / "signing.key", self.keys / "signing.pub")
        self.coordinator = SimulatedCoordinator(self, self.kind.config)
        self.operator = Operator(self)
        self.plot = Plot.drawn(self.rng)
        self.processes: list[Process] = [self.coordinator, *map(self.device, self.names)]

    def device(self, name: str) -> Process:
        if name in self.oracle.hostile:
            return HostileDevice(self, name, self.plot)
        return SimulatedAgent(self, name, 10.0 if self.chance(self.faults.slow) else 1.0)

    def live(self) -> str:
        for _ in range(self.faults.steps):
            if self.coordinator.done:
                break
            self.step()
            self.look()
        self.calm_down()
        for _ in range(PATIENCE):
            if self.at_rest:
                break
            self.calm_step()
            self.look()
            self.watch_the_time()
        else:
            raise BrokenError("the federation does not finish")
        assert self.oracle.progress is not None
        return self.oracle.progress.version

    def watch_the_time(self) -> None:
        if self.now - self.calm_since > self.limit:
            raise BrokenError(f"the rounds take more than {self.limit:.0f} s")

    @property
    def at_rest(self) -> bool:
        """All rounds are done, and every agent has heard what became of its last update."""
        return self.coordinator.done and not any(
            process.jobs or self.broker.queues.get(process.name) or self.outgoing(process)
            for process in self.processes
        )

    def look(self) -> None:
        """After every event: what was acknowledged is where no power cut can reach it.

        And whoever reads the state finds the model, unless the broker has forgotten all.
        """
        for device, version in self.oracle.outstanding:
            content = self.disk.durable(self.coordinator.spooled(device, version))
            self.oracle.kept((device, version), hashlib.sha256(content or b"").hexdigest())
        announced = self.broker.retained.get(self.topics.state)
        if announced is not None and not self.counts[FORGETS]:
            state = decoded(announced.payload)
            chunks = (self.topics.model(state.version, i) for i in range(state.manifest.chunks))
            missing = sum(topic not in self.broker.retained for topic in chunks)
            self.oracle.announced(state.version, missing)

    # Trace and observations

    def tell(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:8.1f}  {text}")

    def carried(self, sender: str, packet: Packet) -> None:
        """The broker has taken a message."""
        self.tell(f"{sender} → {describe(packet)}")
        if sender in self.oracle.hostile:
            self.suspect(packet)
        elif packet.topic.endswith("/report") and packet.payload:
            self.oracle.reported(reports.split(packet.payload)[0])
        elif packet.topic.endswith("/reply"):
            device = self.topics.parse(packet.topic).device
            self.oracle.replied(device, decode(packet.payload, Reply))

    def suspect(self, packet: Packet) -> None:
        """A hostile device has said something: it may be a report."""
        with contextlib.suppress(WireError):
            self.oracle.claimed(reports.split(packet.payload)[0])

    def boundary(self, process: Process, command: object) -> None:
        """Between two commands of a process."""
        self.tell(f"{process.name} does {type(command).__name__}")
        if self.chance(self.faults.kill_at_boundary):
            self.count("kill between commands", process.name)
            raise KilledError

    def write(self) -> None:
        """Before and after a transaction, and before anything else that changes a disk."""
        if self.chance(self.faults.kill_at_boundary):
            self.count("kill at a write")
            raise KilledError

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def count(self, what: str, whose: str = "") -> None:
        self.counts[what] += 1
        self.tell(f"*** {what} {whose}")

    def grouped(self, updates: int) -> None:
        """The coordinator's group stays open with so many updates in it."""
        if updates:
            self.count("an update waits for its group", f"({updates})")
        self.counts["a group of several"] += updates > 1

    # With faults

    def step(self) -> None:
        if self.chance(self.faults.order):
            self.operator.act()
        process = self.rng.choice(self.processes)
        if not self.mishap(process):
            self.act(process)

    def mishap(self, process: Process) -> bool:
        """Let a fault happen to this process by chance; return True if one did."""
        faults = self.faults
        if process.alive and self.chance(faults.kill):
            power_cut = self.chance(0.5)
            self.count("power cut" if power_cut else "kill", process.name)
            process.die(power_cut)
        elif self.chance(faults.reconnect):
            self.count("connection lost", process.name)
            process.disconnect()
        elif self.chance(faults.partition):
            self.count("partition", process.name)
            process.cut_off = True
            process.disconnect()
        elif self.chance(faults.restart_broker):
            forgets = self.chance(0.5)
            self.count(FORGETS if forgets else "broker restart")
            self.restart_broker(forgets)
        elif self.chance(faults.fill_disk):
            self.count("disk full", process.name)
            self.disk.full.add(process.name)
        elif process.name in self.disk.full and self.chance(faults.free_disk):
            self.disk.full.discard(process.name)
        elif self.chance(faults.leap):
            self.count("clock leap", process.name)
            process.offset += self.rng.choice((1.0, 100.0, 10_000.0))
            process.date += self.rng.choice((-1.7e9, -3600.0, 3600.0, 1e9))
        elif isinstance(process, SimulatedAgent) and self.chance(faults.rest):
            self.count("rest", process.name)
            process.rest(self.rng.choice((1.0, 20.0, 200.0)))
        else:
            return False
        return True

    def restart_broker(self, forgets: bool) -> None:
        self.broker.restart(forgets)
        for process in self.processes:
            if process.service is not None and process.service.link is not None:
                process.service.link.connected = False

    def act(self, process: Process) -> None:
        """One thing that the process, or the network for it, has to do."""
        if not process.alive:
            if self.chance(0.2):
                self.disk.full.discard(process.name)
                if self.chance(self.faults.rot):
                    self.rot(process)
                process.start()
            return
        if process.cut_off and self.chance(0.05):
            process.cut_off = False
        if self.chance(process.restless):
            self.now += self.rng.choice((0.1, 1.0, 5.0))
            process.tick()
        elif process.due and self.chance(0.3 / process.slowness):
            process.work()
        elif not process.cut_off:
            self.transfer(process)

    def rot(self, process: Process) -> None:
        """Damage a file; its update is excused, because the device may have no copy any more."""
        path = self.disk.rot(process.name)
        if path is not None:
            self.count("damaged file", f"{process.name} {path.name}")
            self.oracle.excused.add((path.stem, path.parent.name))

    def transfer(self, process: Process) -> None:
        """A message to or from the process; a connection first, if there is none."""
        assert process.service is not None
        link = process.service.link
        assert link is not None
        if not link.connected:
            process.connect()
            return
        queue = self.broker.queues.get(process.name, [])
        if link.outgoing and (not queue or self.chance(0.5)):
            faults = self.faults
            lost, doubled = self.chance(faults.lose), self.chance(faults.double)
            self.counts += Counter({"message lost": lost, "message doubled": doubled})
            number = link.flush_one(self.rng, faults.reorder, lost, doubled)
            if number:
                process.guarded(lambda: process.hand(Delivered(number)))
        elif queue:
            self.deliver(process, queue)

    def deliver(self, process: Process, queue: list[Packet]) -> None:
        """One message, perhaps out of turn, twice or never; unhandled, it comes again.

        The last word on a topic of state is not lost: it is retained.
        """
        topic = (self.rng.choice(queue) if self.chance(self.faults.reorder) else queue[0]).topic
        packet = first_of_topic(queue, topic)
        if self.chance(self.faults.lose) and not topic.endswith(("/state", "/status")):
            self.count("message lost", describe(packet))
            queue.remove(packet)
            return
        self.tell(f"{process.name} ← {describe(packet)}")
        handled = process.hear(packet)
        if handled and not self.chance(self.faults.double) and packet in queue:
            queue.remove(packet)

    # Without

    def calm_down(self) -> None:
        self.tell("no more faults")
        orders = bool(self.faults.order)
        agents = [one for one in self.processes if isinstance(one, SimulatedAgent)]
        self.faults = NONE
        self.calm_since = max([self.now, *(one.rests_until for one in agents)])
        self.disk.full.clear()
        if orders:
            self.operator.settle()
        for process in self.processes:
            process.cut_off = False

    def calm_step(self) -> None:
        """Do all due work in order; time passes only when nothing is due."""
        busy = False
        for process in self.processes:
            if not process.alive:
                process.start()
            elif process.due:
                process.work()
            elif self.has_mail(process):
                self.transfer(process)
            else:
                continue
            busy = True
        if not busy:
            self.now += 1.0
            for process in self.processes:
                process.tick()

    def has_mail(self, process: Process) -> bool:
        link = None if process.service is None else process.service.link
        if link is None or not link.connected:
            return True
        return bool(link.outgoing or self.broker.queues.get(process.name))

    def outgoing(self, process: Process) -> bool:
        link = None if process.service is None else process.service.link
        return link is None or bool(link.outgoing)


@functools.lru_cache(maxsize=8)
def decoded(payload: bytes) -> State:
    return decode(payload, State)


def describe(packet: Packet) -> str:
    """A message in a few words: JSON without its signature, whose key is new in every run."""
    short = packet.topic.removeprefix(f"fededge/v1/{FEDERATION}/")
    if not packet.payload.startswith(b"{") or short == "state":
        return f"{short} ({len(packet.payload)} bytes)"
    text = re.sub(',"signature":"[0-9a-f]+"', "", packet.payload.decode(errors="replace"))
    return f"{short} {text[:160]}"
