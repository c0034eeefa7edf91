"""The real coordinator and the real agent as processes of a simulated world.

Their shells, state machines and stores are the ones that run in the field. What is replaced is
around them: the session, the clock, the disk below the stores, and the training.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fededge.config import AgentConfig, CoordinatorConfig, DataConfig, ModelConfig
from fededge.errors import DiskFullError
from fededge.federated.bounds import FEWEST
from fededge.flat import Layout, Vector, as_numpy
from fededge.hardware.gate import Conditions, Gate, Verdict
from fededge.methods import Private
from fededge.storage import pieces
from fededge.transport.session import Incoming, Will
from fededge.wire.chunks import Payload
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Manifest, Report, State
from fededge_agent.agent import Agent, Surroundings
from fededge_agent.exports.export_worker import ExportWorker
from fededge_agent.machine import commands as agent_commands
from fededge_agent.machine import events as agent_events
from fededge_agent.requests import PreparedJob
from fededge_agent.shell import AgentShell
from fededge_agent.store import Index, TrainedTurn
from fededge_agent.trainer.private_file import load
from fededge_agent.trainer.turn_files import TurnFiles
from fededge_agent.trainer.turns import DeviceTurns
from fededge_agent.turn_runner import TurnRunner
from fededge_agent.worker import Worker
from fededge_server.executor import Command
from fededge_server.machine import events as rounds
from fededge_server.machine.facts import Recalled
from fededge_server.machine.fleet.standings import Standing
from fededge_server.machine.rounds.new_settings import SettingsChanged
from fededge_server.machine.settings import Settings
from fededge_server.model.network import Founded, Network
from fededge_server.running import RunningCoordinator
from fededge_server.shell import Coordinator
from fededge_server.store import Progress, Role, Store
from tests.faults.network import Link, Packet
from tests.faults.oracle import BrokenError
from tests.faults.shares import shares
from tests.faults.trainer import EXAMPLES, NETWORK, SPEC, FakeTrainer

if TYPE_CHECKING:
    from tests.faults.world import World

__all__ = ["KilledError", "Process", "SimulatedAgent", "SimulatedCoordinator"]

FEDERATION = "test"
ARRIVED = pieces.arrived
CLOSED_MINUTES = 3
"""Where rounds have hours, they are all but the first minutes of an hour."""

MEANS = ("fedavg", "scaffold")
OUT = (Standing.QUARANTINED, Standing.REVOKED)
FULL = 2
"""SQLite's `synchronous`: every transaction is on disk when it ends."""


class KilledError(BaseException):
    """The process is gone, at whatever point this was raised."""


def ordered_off(recalled: Recalled, *standings: Standing) -> frozenset[str]:
    """The devices that an operator has ordered one of these standings for."""
    return frozenset(d for d, (standing, _) in recalled.standings.items() if standing in standings)


def on_disk(path: Path, facts: Manifest) -> set[int]:
    """The chunks of a transfer that are on disk; all-zero ones do not count: they may be a hole."""
    size, data = facts.chunk_bytes, path.read_bytes() if path.exists() else b""
    return {i for i in ARRIVED(path, facts) if data[i * size : (i + 1) * size].strip(b"\0")}


class Process:
    """A service and its supervisor: it starts, is killed at any point, and starts again.

    The clock is the process's own: it begins anywhere and may leap, as that of a box that slept.
    What it takes for the time of day may leap either way. `restless`: how often it ticks.
    """

    restless = 0.1

    def __init__(self, world: World, name: str, slowness: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.folder = world.disk.folder(name) / "state"  # the process makes it
        self.slowness = slowness
        self.service: Service | None = None
        self.offset = 0.0
        self.date = 1.8e9
        self.cut_off = False
        self.busy_until = 0.0

    def make(self) -> Service:
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        return self.service is not None

    def clock(self) -> float:
        return self.world.now + self.offset

    def wall(self) -> float:
        return self.world.now + self.date

    def start(self) -> None:
        self.offset, self.busy_until = self.world.rng.uniform(0.0, 1e6), 0.0
        self.service = self.make()
        self.guarded(self.service.begin, starts=True)

    def guarded(self, action: Callable[[], None], starts: bool = False) -> bool:
        """Run an action; return True if the process survives it.

        Only a kill may end a process, or a full disk at its start.

        Raises:
            BrokenError: if anything else does.
        """
        try:
            action()
        except KilledError:
            self.die(self.world.chance(0.5))
        except BrokenError:
            raise
        except Exception as error:
            if not (starts and isinstance(error, DiskFullError)):
                raise BrokenError(self._obituary(error, starts)) from error
            self.world.tell(f"{self.name} stops: {self._said(error)}")
            self.die(False)
        return self.alive

    def _obituary(self, error: Exception, starts: bool) -> str:
        """Describe the error that ended the process, and try whether a restart fails too."""
        if starts:
            return f"{self.name} cannot start: {self._said(error)}"
        self.world.calm_down()
        self.die(False)
        try:
            self.service = self.make()
            self.service.begin()
            self.service.tick()
        except Exception as again:  # noqa: BLE001 - whatever it is, it is told
            return f"{self.name} ended: {self._said(error)}; and again: {self._said(again)}"
        return f"{self.name} ended: {self._said(error)}"

    def _said(self, error: Exception) -> str:
        """Without the folder, which is of this run alone."""
        text = f"{type(error).__name__}: {error}"
        return text.replace(f"{self.world.disk.root}/", "")

    def die(self, power_cut: bool) -> None:
        """kill -9, or the plug is pulled: then what was not synced may be gone."""
        service, self.service = self.service, None
        if service is None:
            return
        service.abandon()
        if service.link is not None:
            service.link.lose(self.world.chance(0.7))
        if power_cut:
            self.world.disk.power_cut(self.name)

    def connect(self) -> None:
        assert self.service is not None
        assert self.service.link is not None
        event = self.service.link.connect()
        self.guarded(lambda: self.hand(event))

    def disconnect(self) -> None:
        if self.service is not None and self.service.link is not None:
            self.service.link.lose(self.world.chance(0.5))

    def hand(self, event: Any) -> None:
        assert self.service is not None
        self.service.take(event)

    def hear(self, packet: Packet) -> bool:
        """Deliver a message; return True if it was handled: otherwise it comes again.

        One that waits for its group to be durable counts as handled: if the process is killed
        before, the message is lost here, which is worse than what a broker does.
        """
        message = Incoming(packet.topic, packet.payload, packet.retained, lambda: None)
        return self.guarded(lambda: self.hand(message))

    @property
    def jobs(self) -> list[Callable[[], None]]:
        return [] if self.service is None else self.service.waiting

    @property
    def due(self) -> bool:
        """True if a job has finished by now: a turn takes simulated time."""
        return bool(self.jobs) and self.world.now >= self.busy_until

    def work(self) -> None:
        service = self.service
        assert service is not None
        job = service.waiting.pop(0)
        self.guarded(lambda: service.finish(job))

    def tick(self) -> None:
        service = self.service
        if service is not None:
            self.guarded(service.tick)


class Service:
    """The common part of the two services here: a link, and jobs that the world runs."""

    process: Process
    link: Link | None
    waiting: list[Callable[[], None]]

    def link_with(self, will: Will) -> Link:
        """A new link to the world's broker."""
        self.link = Link(self.process.world.broker, self.process.name, will)
        return self.link

    def begin(self) -> None:
        raise NotImplementedError

    def take(self, event: Any) -> None:
        raise NotImplementedError

    def finish(self, job: Callable[[], None]) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        raise NotImplementedError


class SimulatedCoordinator(Process):
    def __init__(self, world: World, config: dict[str, Any]) -> None:
        super().__init__(world, "coordinator")
        self.config = CoordinatorConfig(
            federation=FEDERATION,
            state=str(self.folder),
            data=DataConfig(source="none"),
            signing_key=str(world.keys / "signing.key"),
            **config,
        )
        self.done = False
        self.making: tuple[Any, Any] = ({}, {})

    def make(self) -> Service:
        return CoordinatorService(self)

    def spooled(self, device: str, version: str) -> Path:
        return self.folder / "spool" / version / f"{device}.safetensors"


class CoordinatorService(Service):
    """A coordinator with the world's session, store, network and clocks, and the oracle watching.

    `running` is None until it has started.
    """

    def __init__(self, process: SimulatedCoordinator) -> None:
        self.process: SimulatedCoordinator = process
        self.link = None
        self.waiting = []
        self.coordinator = Coordinator(
            process.config,
            process.clock,
            process.wall,
            store=WatchedStore(process),
            network=FakeNetwork(),
            connect=lambda broker, name, inbox, will, kept: self._session(name, will),
            claim=lambda config, identity: None,  # one process has each name here
            watch=self.watch,
        )
        self.running: RunningCoordinator | None = None
        self.moment: datetime | None = None
        self.made = -math.inf

    @property
    def untimely(self) -> str:
        """The schedule's objection to a round that begins now; empty if there is none."""
        config, now = self.process.config.rounds, self.process.clock()
        if config.hours and (self.moment is None or self.moment.minute < CLOSED_MINUTES):
            return f"it is {self.moment}"
        early = now < self.made + config.interval
        return f"{now - self.made:.0f} s after the version" if early else ""

    def _session(self, name: str, will: Will) -> Any:
        return self.link_with(will)

    def _claim(self) -> None:
        """One process has each name here: nobody to ask."""

    def begin(self) -> None:
        self.running = self.coordinator.start()
        self.process.world.oracle.resumed(self.running.parts.rounds.participants.stored)

    def take(self, event: Any) -> None:
        assert self.running is not None
        self.running.take(event)
        if self.process.world.chance(self.process.world.faults.crowd):
            self.process.world.grouped(len(self.running.executor.group))
        else:
            self.running.pause()
        self.process.done = self.running.rounds_done

    def tick(self) -> None:
        assert self.running is not None
        self.running.tick()
        self.process.done = self.running.rounds_done

    def watch(self, seen: object) -> None:
        """Each event before it is handled, each command before it is carried out."""
        world, store = self.process.world, self.coordinator.store
        if isinstance(seen, Command):
            world.boundary(self.process, seen)
        match seen:
            case rounds.SetAside(device, move):
                raise BrokenError(f"{device} makes a move that is not in the table: {move}")
            case rounds.TimeOfDay(moment):
                self.moment = moment
            case rounds.MergeDone() | rounds.RolledBack():
                self.made = self.process.clock()
            case SettingsChanged(version=version):
                world.count("settings changed", version)
                self.made = self.process.clock() if version else self.made
            case rounds.Remember():
                world.oracle.begun(seen.round, self.untimely)
                known = store.recall(self.process.wall())
                off = ordered_off(known, Standing.DRAINED, *OUT)
                world.oracle.chose(seen.version, seen.asked, off, known.paused)
            case rounds.Invite():
                known = store.recall()
                out = known.quarantined | ordered_off(known, *OUT)
                world.oracle.asked(seen.device, out)
            case rounds.SendReply(device, reply) if reply.kind == "accepted":
                taken = store.recall().accepted.get(device)
                entered = taken is not None and taken.version == reply.version
                world.oracle.entered((device, reply.version), entered)
            case rounds.SendReply(device, reply) if reply.kind == "resend":
                path = self.process.spooled(device, reply.version)
                report = pieces.expected(path, Report)
                world.oracle.requested((device, reply.version), report is not None)
                if report is not None:
                    have = on_disk(path, report.manifest)
                    world.oracle.wanted(self.process.name, reply.chunks, have)

    def abandon(self) -> None:
        self.coordinator.close()


class FakeNetwork(Network):
    """The network of every run here, which nobody evaluates."""

    def __init__(self) -> None:
        super().__init__(ModelConfig(), DataConfig(source="none"), "fedavg", 0)

    def start(self) -> Founded:
        return Founded(SPEC, NETWORK.layout, as_numpy(NETWORK.vector).copy())


class WatchedConnection(sqlite3.Connection):
    """A process may be killed before a transaction and after it, or find the disk full.

    SQLite's files survive every power cut here: so they must be synced at every commit.
    """

    process: SimulatedCoordinator

    def __exit__(self, *raised: Any) -> Any:
        if raised[0] is not None or not self.in_transaction:
            return super().__exit__(*raised)
        (synced,) = self.execute("PRAGMA synchronous").fetchone()
        if synced < FULL:
            raise BrokenError("the journal is not synced")
        if self.process.name in self.process.world.disk.full:
            self.rollback()
            raise sqlite3.OperationalError("database or disk is full")
        self.process.world.write()
        left = super().__exit__(*raised)
        self.process.world.write()
        return left


class WatchedStore(Store):
    """Tells the oracle of every version, and of the updates that were read to make it."""

    def __init__(self, process: SimulatedCoordinator) -> None:
        super().__init__(process.folder, self.watched)
        self.process = process
        self.read: dict[str, tuple[str, bytes]] = {}

    def watched(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, factory=WatchedConnection)
        connection.process = self.process
        return connection

    def open(self) -> None:
        super().open()
        if self.progress() is not None:
            self.tell_version()  # whoever wrote it may have had no time to

    def update(self, version: str, device: str, *rest: Any) -> Any:
        self.read[device] = version, self.process.spooled(device, version).read_bytes()
        return super().update(version, device, *rest)

    def advance(self, progress: Progress, layout: Layout, model: Vector, *rest: Any) -> Payload:
        merged = rest[1]
        read = {d: update for d, update in self.read.items() if d in merged}
        hashes = {d: (v, hashlib.sha256(data).hexdigest()) for d, (v, data) in read.items()}
        self.process.making = merged, hashes
        if self.measured and sum(scalars["examples"] > 0 for scalars in merged.values()) >= FEWEST:
            self.measure(layout, model, {d: data for d, (_, data) in read.items()})
        written = super().advance(progress, layout, model, *rest)
        self.read = {}
        self.tell_version()
        return written

    def measure(self, layout: Layout, model: Vector, updates: dict[str, bytes]) -> None:
        """Tell the oracle how much of the next model each device's update is."""
        before, encoding = self.progress(), Encoding.parse(self.in_force.transfer.encoding)
        assert before is not None
        base = self.load(before.version, layout)[0]
        vectors = {d: encoding.unpack(layout, data, base) for d, data in updates.items()}
        self.process.world.oracle.made_of(shares(base, model, vectors))

    @property
    def in_force(self) -> Settings:
        return self.settings()[Role.IN_FORCE]

    @property
    def measured(self) -> bool:
        """True if the next model is exactly the weighted mean of the updates."""
        config = self.in_force
        mean = config.robust.combine == "mean" and not config.robust.clip_norm
        return mean and config.method in MEANS and not config.rounds.folds

    def tell_version(self) -> None:
        """The oracle hears of the version that the journal names, if it has not."""
        oracle, progress = self.process.world.oracle, self.progress()
        assert progress is not None
        if progress != oracle.progress:
            back = (progress.rounds_done, "rollback")
            rolled_back = back in {(one.round, one.kind) for one in self.changes()}
            oracle.advanced(progress, *self.process.making, rolled_back)
            oracle.holds(progress.version, self.load(progress.version, NETWORK.layout)[0])


class SimulatedAgent(Process):
    def __init__(self, world: World, device: str, slowness: float) -> None:
        super().__init__(world, device, slowness)
        self.config = AgentConfig(
            federation=FEDERATION,
            state=str(self.folder),
            device=device,
            data=DataConfig(source="embedded"),
            trusted_key=str(world.keys / "signing.pub"),
        )
        self.rests_until = 0.0

    def make(self) -> Service:
        return AgentService(self)

    def rest(self, seconds: float) -> None:
        """Close the gate for this long: the box has other work."""
        self.rests_until = self.world.now + seconds

    def begin_turn(self) -> None:
        """A turn takes as long as the world says."""
        self.busy_until = self.world.now + self.world.rng.uniform(*self.world.kind.turn)


class AgentService(Service):
    """The real agent, in surroundings that belong to the world."""

    def __init__(self, process: SimulatedAgent) -> None:
        self.process: SimulatedAgent = process
        self.link = None
        self.waiting = []
        self.trained: list[tuple[Report, str, str]] = []
        around = Surroundings(
            clock=process.clock,
            session=lambda broker, name, inbox, will, keep: self.link_with(will),
            claim=unclaimed,
            trainer=lambda config, store: SimulatedTurns(self, config),
            worker=lambda runner, exports, inbox: SimulatedWorker(self, runner, exports, inbox),
            exports=SimulatedExports,
            gate=lambda config: SimulatedGate(process),
            watch=self.watch,
        )
        self.agent = Agent(process.config, around)
        self.shell: AgentShell | None = None

    def begin(self) -> None:
        self.shell = self.agent.open()

    def take(self, event: Any) -> None:
        assert self.shell is not None
        self.shell.take(event)

    def tick(self) -> None:
        assert self.shell is not None
        self.shell.tick()

    def watch(self, seen: object) -> None:
        """Each event before it is handled, each command before it is carried out."""
        world, name = self.process.world, self.process.name
        if isinstance(seen, agent_commands.Command):
            world.boundary(self.process, seen)
        if isinstance(seen, agent_events.Spoiled):
            world.oracle.spoiled(name, seen.reason)
        if isinstance(seen, agent_commands.Follow):
            path = self.agent.store.folder / f"{seen.version}.part"
            facts = pieces.expected(path, Manifest)
            assert facts is not None
            world.oracle.wanted(name, seen.chunks, on_disk(path, facts))

    def finish(self, job: Callable[[], None]) -> None:
        self.agent.worker.finish(job)
        self.tell()
        while not self.agent.loop.inbox.empty():
            self.take(self.agent.loop.inbox.get())

    def tell(self) -> None:
        """Not from within the job: the agent would take an exception for a bug of a method."""
        turn = self.agent.store.index.turn
        while self.trained:
            report, before, after = self.trained.pop()
            if turn is not None and turn.report == report:  # it was saved
                self.process.world.oracle.trained(report, before, after)

    def abandon(self) -> None:
        self.agent.close()


def unclaimed(*_: object) -> None:
    """One process has each name here: there is nobody to ask."""


class SimulatedGate(Gate):
    """The gate of a box; the world decides when it is closed."""

    def __init__(self, process: SimulatedAgent) -> None:
        super().__init__(Conditions())
        self.process = process

    def verdict(self, training: bool = False) -> Verdict:
        resting = self.process.world.now < self.process.rests_until
        return Verdict(not resting, "a day job" * resting)


class SimulatedWorker(Worker):
    """The agent's worker; the world decides when it runs."""

    def __init__(
        self, service: AgentService, runner: TurnRunner, exports: ExportWorker, inbox: Any
    ) -> None:
        super().__init__(runner, exports, inbox)
        self.service = service

    def put(self, job: Callable[[], None]) -> None:
        self.service.waiting.append(job)

    def warm_up(self) -> None:
        """Torch is here already."""

    def train(self, state: State) -> None:
        self.service.process.begin_turn()
        super().train(state)


class SimulatedExports(ExportWorker):
    """The agent's exports, in the worker's thread."""

    def release(self) -> None:
        self.release_now()


class SimulatedTurns(DeviceTurns):
    """The device's turns with a fake training; what is saved and sent is the real thing."""

    def __init__(self, service: AgentService, config: AgentConfig) -> None:
        super().__init__(config)
        self.service = service

    def prepare(self, state: State, export: bool = True) -> PreparedJob:
        process = self.service.process
        self.encoding = Encoding.parse(state.encoding)
        judges = bool(process.world.kind.hostile)
        trainer = FakeTrainer(process.name, state.method, judges)
        self.trainer = trainer  # type: ignore[assignment]
        method = trainer.method
        self.job = PreparedJob(trainer.net.layout, (*method.sends,), method.scalars, EXAMPLES)
        return self.job

    def train(self, state: State, index: Index) -> TrainedTurn:
        before = digest(TurnFiles(self.folder, index).private(state.run))
        turn = super().train(state, index)
        saved = turn.accepted
        after = digest(load(self.folder / saved.name, saved.sha256, bool))
        self.service.trained.append((turn.report, before, after))
        return turn

    def hand_over(self) -> None:
        """No export."""

    def measure(self) -> None:
        """No metrics."""


def digest(private: Private) -> str:
    """A hash of a device's private state."""
    sha256 = hashlib.sha256()
    for name, value in sorted(private.items()):
        data = value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode()
        sha256.update(name.encode() + data)
    return sha256.hexdigest()
