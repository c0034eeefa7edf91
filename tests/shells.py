"""The coordinator and the agent as in-memory shells: the real machines, dictionaries for disks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fededge.config import RoundsConfig
from fededge.spec import ModelSpec
from fededge.wire import chunks
from fededge.wire.messages import (
    Message,
    Reply,
    Report,
    State,
    Status,
    TaskMessage,
    Training,
    decode,
    encode,
)
from fededge.wire.topics import Topics
from fededge_agent import events as life
from fededge_agent.events import Pending
from fededge_agent.life import Life
from fededge_server import events as rounds
from fededge_server.events import Memory
from fededge_server.rounds import Rounds

if TYPE_CHECKING:
    from tests.federation import Federation

__all__ = ["Agent", "Coordinator", "KilledError", "Process"]

TOPICS = Topics("test")
RUN = "run-1"
LAYOUT = "ab" * 32
CHUNK_BYTES = 1024
PAYLOAD = 2500  # three chunks
SPEC = ModelSpec("lenet", ("a", "b"), (1, 8, 8), (0.5,), (0.5,))
TRAINING = Training(epochs=1, batch_size=1, lr=0.1, momentum=0.0, weight_decay=0.0)


def digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def payload(*parts: object) -> bytes:
    """Bytes that stand for a model or an update, fixed by these facts."""
    return hashlib.shake_128(digest(*parts).encode()).digest(PAYLOAD)


class KilledError(Exception):
    """A process is gone, between two commands."""


@dataclass
class Process:
    """What both shells share: a name, a life that can end at any command, and subscriptions."""

    name: str
    world: Federation
    alive: bool = False

    def start(self) -> None:
        self.alive = True
        self.jobs: list[Callable[[], None]] = []
        self.guarded(self.boot)

    def connect(self) -> None:
        """Every connect is the first: all subscriptions again, and the owner announces itself."""
        for pattern in self.subscriptions():
            self.world.broker.subscribe(self.name, pattern)
        self.guarded(self.connected)

    def guarded(self, action: Callable[[], None]) -> bool:
        """Whether the action was survived."""
        try:
            action()
        except KilledError:
            self.die()
        return self.alive

    def die(self) -> None:
        self.alive = False

    def perform(self, commands: list[Any]) -> None:
        for command in commands:
            self.world.fuse()
            self.do(command)

    def publish(self, topic: str, message: Message, retain: bool = False) -> None:
        self.world.broker.publish(topic, encode(message), retain)

    def subscriptions(self) -> list[str]:
        raise NotImplementedError

    def boot(self) -> None:
        raise NotImplementedError

    def connected(self) -> None:
        raise NotImplementedError

    def hear(self, topic: str, message: bytes) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def do(self, command: Any) -> None:
        raise NotImplementedError


class Coordinator(Process):
    """The shell of the rounds; `versions`, `accepted`, `spool` and `asked` are its disk."""

    def __init__(self, world: Federation, config: RoundsConfig) -> None:
        super().__init__("coordinator", world)
        self.config = config
        self.versions = [f"000000-{digest('first')[:16]}"]
        self.accepted: dict[str, Report] = {}
        self.spool: dict[tuple[str, str], bytearray] = {}
        self.asked: rounds.Remember | None = None

    @property
    def done(self) -> bool:
        return len(self.versions) > self.config.count

    def boot(self) -> None:
        number, version = len(self.versions) - 1, self.versions[-1]
        current = [d for d, report in self.accepted.items() if report.version == version]
        for device in current:
            if self.world.loses_file():
                del self.accepted[device]  # a damaged update is forgotten: its sender has it
        asked = self.asked
        memory = Memory(
            invited=frozenset(asked.invited if asked and asked.round == number else ()),
            known=frozenset(asked.known if asked else ()),
            accepted=dict(self.accepted),
        )
        kept = {(version, d) for d, report in self.accepted.items() if report.version == version}
        self.spool = {key: data for key, data in self.spool.items() if key in kept}
        facts = rounds.Facts(RUN, 0, LAYOUT, frozenset({"examples"}), CHUNK_BYTES, PAYLOAD)
        self.machine = Rounds(facts, self.config, number, version, memory)
        self.connect()

    def subscriptions(self) -> list[str]:
        kinds = [TOPICS.device("+", kind) for kind in ("status", "report")]
        return [*kinds, TOPICS.update("+", "+")]

    def connected(self) -> None:
        self.publish_model()
        self.publish_state()

    def hear(self, topic: str, message: bytes) -> None:
        address = TOPICS.parse(topic)
        if address.kind == "status":
            self.handle(rounds.StatusCame(address.device, decode(message, Status)))
        elif address.kind == "report":
            self.handle(rounds.ReportCame(address.device, decode(message, Report)))
        else:
            self.handle(rounds.ChunkCame(address.device, address.version, message))

    def tick(self) -> None:
        self.handle(rounds.Tick())

    def handle(self, event: rounds.Event) -> None:
        self.perform(self.machine.handle(event, self.world.now))

    def do(self, command: rounds.Command) -> None:
        match command:
            case rounds.Remember():
                self.asked = command
            case rounds.Open():
                self.publish_state()
            case rounds.Invite(device, number, version):
                task = TaskMessage(device, number, version)
                self.publish(TOPICS.device(device, "task"), task)
            case rounds.Answer(device, reply):
                self.publish(TOPICS.device(device, "reply"), reply)
            case rounds.Keep(device, version, offset, data):
                file = self.spool.setdefault((version, device), bytearray(PAYLOAD))
                file[offset : offset + len(data)] = data
            case rounds.Discard(device, version):
                self.spool.pop((version, device), None)
            case rounds.Check(device, report):
                self.jobs.append(lambda: self.check(device, report))
            case rounds.Merge(number, reports, _):
                self.merge(number, reports)

    def check(self, device: str, report: Report) -> None:
        data = bytes(self.spool[report.version, device])
        if hashlib.sha256(data).hexdigest() != report.manifest.sha256:
            self.handle(rounds.Bad(device, "damaged"))
            return
        self.accepted[device] = report
        self.world.fuse()
        self.handle(rounds.Stored(device, report))

    def merge(self, number: int, reports: Mapping[str, Report]) -> None:
        old = self.versions[-1]
        updates = {d: hashlib.sha256(self.spool[old, d]).hexdigest() for d in reports}
        self.world.fuse()
        self.world.merges.append((old, updates))
        self.versions.append(f"{number + 1:06d}-{digest(old, sorted(updates.items()))[:16]}")
        self.world.fuse()
        commands = self.machine.handle(rounds.Merged(self.versions[-1]), self.world.now)
        self.publish_model()
        self.publish_state()
        for index in range(self.manifest.chunks):
            self.world.broker.publish(TOPICS.model(old, index), b"", retain=True)
        self.perform(commands)

    def publish_model(self) -> None:
        data = payload(self.versions[-1])
        self.manifest = chunks.manifest(data, CHUNK_BYTES)
        for index in range(self.manifest.chunks):
            chunk = chunks.pack(data, self.manifest, index)
            self.world.broker.publish(TOPICS.model(self.versions[-1], index), chunk, retain=True)

    def publish_state(self) -> None:
        machine = self.machine
        state = State(
            federation="test",
            run=RUN,
            seed=0,
            round=machine.round,
            rounds=self.config.count,
            phase="waiting" if machine.phase == "merging" else machine.phase,
            version=self.versions[-1],
            sha256=digest(self.versions[-1]),
            layout=LAYOUT,
            method="fedavg",
            training=TRAINING,
            model=SPEC,
            manifest=self.manifest,
            deadline=0.0,
        )
        self.publish(TOPICS.state, state, retain=True)


@dataclass
class SavedTurn:
    report: Report
    update: bytes
    private: str
    accepted: bool = False


class Agent(Process):
    """The shell of a life; `held`, `turn` and `private` are its disk."""

    def __init__(self, world: Federation, device: str) -> None:
        super().__init__(device, world)
        self.held = ""
        self.turn: SavedTurn | None = None
        self.private = ""

    def boot(self) -> None:
        if self.world.loses_file():
            self.held = ""
        turn = self.turn
        saved = None if turn is None else Pending(RUN, turn.report.version)
        if turn is not None and turn.accepted:
            self.machine = Life(self.name, held=self.held, settled=saved)
        else:
            self.machine = Life(self.name, held=self.held, pending=saved)
        self.parts: dict[str, bytearray] = {}
        self.layout = ""
        self.connect()

    def die(self) -> None:
        super().die()
        for pattern in self.world.broker.filters[self.name] - set(self.subscriptions()):
            self.world.broker.unsubscribe(self.name, pattern)
        if self.world.chance(0.7):  # the last will; or nobody notices that we are gone
            status = Status("i", online=False, device=self.name)
            self.publish(TOPICS.device(self.name, "status"), status, retain=True)

    def subscriptions(self) -> list[str]:
        return [TOPICS.state, *(TOPICS.device(self.name, kind) for kind in ("task", "reply"))]

    def connected(self) -> None:
        self.handle(life.Connected())

    def hear(self, topic: str, message: bytes) -> None:
        address = TOPICS.parse(topic)
        if address.kind == "state":
            self.handle(life.StateCame(decode(message, State)))
        elif address.kind == "task":
            self.handle(life.TaskCame(decode(message, TaskMessage)))
        elif address.kind == "reply":
            self.handle(life.ReplyCame(decode(message, Reply)))
        elif message:
            self.handle(life.ChunkCame(address.version, message))

    def tick(self) -> None:
        self.handle(life.Tick())

    def handle(self, event: life.Event) -> None:
        self.perform(self.machine.handle(event, self.world.now))

    def do(self, command: life.Command) -> None:
        match command:
            case life.Announce():
                activity = self.machine.activity
                status = Status("i", True, device=self.name, activity=activity, layout=self.layout)
                self.publish(TOPICS.device(self.name, "status"), status, retain=True)
            case life.Prepare(state):
                self.jobs.append(lambda: self.prepare(state))
            case life.Follow(version):
                self.world.broker.subscribe(self.name, TOPICS.model(version))
            case life.Unfollow(version):
                self.world.broker.unsubscribe(self.name, TOPICS.model(version))
            case life.Keep(version, offset, data):
                file = self.parts.setdefault(version, bytearray(PAYLOAD))
                file[offset : offset + len(data)] = data
            case life.CheckModel(version, _):
                assert bytes(self.parts.pop(version)) == payload(version)
                self.held = version
                self.world.fuse()
                self.handle(life.Fetched(version))
            case life.Train(task, state):
                assert self.held == task.version == state.version
                self.jobs.append(lambda: self.train(task, state))
            case life.SendUpdate(only):
                self.send(only)
            case life.Settle(accepted):
                self.settle(accepted)
            case life.Halt(reason):
                raise AssertionError(f"{self.name} was refused: {reason}")

    def prepare(self, state: State) -> None:
        self.layout = LAYOUT
        self.handle(life.Prepared(state, most_bytes=PAYLOAD))

    def train(self, task: TaskMessage, state: State) -> None:
        update = payload(self.name, task.version, self.private)
        manifest = chunks.manifest(update, CHUNK_BYTES)
        scalars = {"examples": 1.0}
        report = Report(self.name, RUN, task.round, task.version, LAYOUT, manifest, scalars)
        self.turn = SavedTurn(report, update, digest(self.private, manifest.sha256))
        self.world.trained[self.name, task.version] += 1
        self.world.origin[manifest.sha256] = (self.name, task.version)
        self.world.fuse()
        self.handle(life.Trained(Pending(RUN, task.version)))

    def send(self, only: tuple[int, ...] | None) -> None:
        turn = self.turn
        assert turn is not None, "the machine sends what is not there"
        if not only:
            self.publish(TOPICS.device(self.name, "report"), turn.report)
        manifest = turn.report.manifest
        for index in range(manifest.chunks) if only is None else only:
            topic = TOPICS.update(self.name, turn.report.version, index)
            self.world.broker.publish(topic, chunks.pack(turn.update, manifest, index))

    def settle(self, accepted: bool) -> None:
        turn = self.turn
        assert turn is not None
        assert not turn.accepted, "decided twice"
        self.world.settled[self.name, turn.report.version] = accepted
        turn.accepted = accepted
        if accepted:
            self.private = turn.private
        else:
            self.turn = None
