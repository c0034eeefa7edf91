"""A hostile device: it has valid credentials, reads what devices may read, and sends anything.

The broker confines it to its own topics. There it may send anything at any moment: well-formed
updates of any content, for any version, asked for or not; lies about itself; messages with any
field exchanged; bytes that are no message; or nothing. The world's random numbers decide, so that a
seed fixes the run.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fededge.errors import WireError
from fededge.flat import Vector
from fededge.transport.session import Connected, Delivered, Incoming, Will
from fededge.wire import chunks, reports, tensors
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Claim, Manifest, Reply, Report, State, Status, decode, encode
from fededge.wire.messages import TaskMessage as Task
from fededge.wire.topics import Topics
from tests.faults.lies import NUMBERS, POISONS, garbage, mangled, poisoned, tampered, update_of
from tests.faults.processes import FEDERATION, Process, Service
from tests.faults.trainer import ACCURACY, EXAMPLES, NETWORK, honest_scalars, method_of

if TYPE_CHECKING:
    from tests.faults.world import World

__all__ = ["HostileDevice", "Plot"]

ALL_OF_IT = (
    *("heartbeat", "boast", "flap", "answer", "lie", "intrude", "bluff", "push"),
    *("garble", "tamper", "repeat", "pose", "vanish"),
)
MANNERS: dict[str, tuple[str, ...]] = {
    "mute": ("heartbeat",),
    "poisoner": ("heartbeat", "boast", "answer", "answer", "answer", "intrude"),
    "liar": ("heartbeat", "boast", "lie", "lie", "lie"),
    "intruder": ("heartbeat", "answer", "intrude", "intrude", "repeat"),
    "flapper": ("flap", "flap", "doze", "vanish", "pose"),
    "noisy": ("heartbeat", "garble", "tamper", "tamper", "bluff", "push", "repeat"),
    "anything": ALL_OF_IT,
}
"""The actions of each kind of hostile device; an action named twice is twice as likely."""

ACTIVITIES = (
    *("offline", "starting", "unable", "resting", "ready", "fetching", "training", "failed"),
)
AFTERWARDS = 3
"""Things that a device does after the last round: the federation must come to rest."""


@dataclass(frozen=True)
class Plot:
    """The common plan of hostile devices: their behaviour, and the poison that they send mostly."""

    manner: str
    poison: int

    @classmethod
    def drawn(cls, rng: random.Random) -> Plot:
        return cls(rng.choice(list(MANNERS)), rng.randrange(len(POISONS)))


class HostileDevice(Process):
    """The device as a process of the world; it follows the plot, or a manner of its own."""

    restless = 0.5

    def __init__(self, world: World, name: str, plot: Plot) -> None:
        super().__init__(world, name)
        self.plot = plot if world.chance(0.6) else Plot.drawn(world.rng)
        self.silent_after = world.rng.choice((math.inf, math.inf, 10.0, 60.0))
        self.afterwards = AFTERWARDS
        world.tell(f"{name} is hostile: {self.plot}, silent after {self.silent_after} s")

    def poisoned(self, model: Vector) -> Vector:
        poison = self.plot.poison if self.world.chance(0.7) else None
        return poisoned(model, self.world.rng, poison)

    def make(self) -> Service:
        return HostileService(self)


class HostileService(Service):
    """A hostile device from its start to its restart.

    `asked` are the versions that it was asked for, `offers` the updates whose chunks it may send,
    and `said` is all that it may say again.
    """

    def __init__(self, process: HostileDevice) -> None:
        self.process: HostileDevice = process
        self.rng = process.world.rng
        self.topics = Topics(FEDERATION)
        self.link = None
        self.waiting = []
        self.state: State | None = None
        self.versions: list[str] = []
        self.asked: list[str] = []
        self.offers: dict[str, tuple[bytes, Manifest]] = {}
        self.said: list[tuple[str, bytes, bool]] = []
        self.examples = EXAMPLES
        self.instance = self.rng.randbytes(16).hex()

    # Events

    def begin(self) -> None:
        last_word = self.rng.choice((encode(self._status(online=False)), garbage(self.rng)))
        link = self.link_with(Will(self._topic("status"), last_word))
        link.subscribe(self.topics.state, self._topic("task"), self._topic("reply"))

    def take(self, event: Any) -> None:
        match event:
            case Incoming():
                with contextlib.suppress(WireError):
                    self._message(event)
                event.ack()
            case Delivered():
                assert self.link is not None
                self.link.delivered(event)
            case Connected():
                self._heartbeat()

    def _message(self, message: Incoming) -> None:
        kind = self.topics.parse(message.topic).kind
        if kind == "state" and message.payload:
            self.state = decode(message.payload, State)
            if self.state.version not in self.versions:
                self.versions.append(self.state.version)
        elif kind == "task":
            self.asked.append(decode(message.payload, Task).version)
        elif kind == "reply":
            self._reply(decode(message.payload, Reply))

    def _reply(self, reply: Reply) -> None:
        """Send the chunks that are asked for; sometimes others, or none."""
        if reply.kind == "resend" and reply.version in self.offers:
            obeys = self.rng.random() < 0.9
            some = self.rng.choices(range(4), k=self.rng.randrange(4))
            self._send_chunks(reply.version, reply.chunks if obeys else some)

    def tick(self) -> None:
        """Do something, or not."""
        process, world = self.process, self.process.world
        if world.now > process.silent_after or self.rng.random() < 0.5:
            return
        if world.coordinator.done:
            process.afterwards -= 1
        if process.afterwards >= 0:
            deed = self.rng.choice(MANNERS[process.plot.manner])
            world.count("hostile", f"{process.name}: {deed}")
            getattr(self, f"_{deed}")()

    def finish(self, job: Callable[[], None]) -> None:
        """It has no jobs."""

    def abandon(self) -> None:
        """It holds nothing."""

    # Statuses

    def _heartbeat(self) -> None:
        activity = self.rng.choice(("ready", "ready", "fetching", "training"))
        self._say("status", encode(self._status(activity=activity)), True)

    def _boast(self) -> None:
        self.examples = self.rng.choice((0, 1, EXAMPLES, 10**6, 2**53, 2**53))
        self._heartbeat()

    def _doze(self) -> None:
        """Rest and wake, over and over: it is asked, and gives its turn up."""
        activity = self.rng.choice(("resting", "ready"))
        self._say("status", encode(self._status(activity=activity, problem="busy")), True)

    def _flap(self) -> None:
        status = self._status(
            online=self.rng.random() < 0.8,
            activity=self.rng.choice(ACTIVITIES),
            examples=self.rng.choice((0, 1, EXAMPLES, 10**9, 2**53)),
            problem=self.rng.choice(("", "no space left", "é" * 2000)),
            model_round=self.rng.choice((-1, 0, 2**53)),
            model_state=self.rng.choice(("none", "promoted", "bad", "rolled-back")),
            rollout=self.rng.choice((0, 1, 2, 2**53)),
            instance=self.rng.choice((self.instance, "0" * 32)),
            layout=self.rng.choice((NETWORK.layout.hash, NETWORK.layout.hash, "", "0" * 64)),
        )
        self._say("status", encode(status), self.rng.random() < 0.8)

    def _pose(self) -> None:
        """Ask who holds its name, as a second process would."""
        self._say("claim", encode(Claim(self.rng.randbytes(16).hex())), False)

    def _vanish(self) -> None:
        """Break the connection; the broker speaks its will, or not."""
        self.process.disconnect()

    # Updates

    def _answer(self) -> None:
        """A well-formed update of any content, where it was asked for one."""
        if self.state is not None and self.state.version in self.asked:
            scalars = self._scalars(self.state)
            self._offer(self.state.version, self.process.poisoned(self._model()), scalars)

    def _lie(self) -> None:
        """An ordinary update with a false report."""
        if self.state is None or self.state.version not in self.asked:
            return
        scalars = self._scalars(self.state)
        if self.rng.random() < 0.5:
            scalars[self.rng.choice(sorted(scalars))] = float(self.rng.choice(NUMBERS))
        noise = np.random.default_rng(self.rng.getrandbits(32)).normal(size=NETWORK.layout.size)
        model = 0.9 * self._model() + 0.1 * noise.astype(np.float32)
        self._offer(self.state.version, model, scalars)

    def _intrude(self) -> None:
        """An update that was not asked for, is outdated, or names a version that never existed."""
        if self.state is not None:
            version = self.rng.choice((self.state.version, *self.versions, self._foreign()))
            scalars = self._scalars(self.state)
            self._offer(version, self.process.poisoned(self._model()), scalars)

    def _foreign(self) -> str:
        """A version like those of the federation, of a round that is near."""
        assert self.state is not None
        number = self.rng.choice((0, self.state.round, self.state.round + 1, 999_999))
        return (
            f"{number:06d}-{self.rng.choice((self.state.version[7:], self.rng.randbytes(8).hex()))}"
        )

    def _offer(self, version: str, model: Vector, scalars: dict[str, float]) -> None:
        """Report an update, to send it when it is asked for."""
        assert self.state is not None
        encoding = Encoding.parse(self.state.encoding)
        payload = update_of(model, self._model(), NETWORK.layout, encoding)
        if self.rng.random() < 0.1:
            payload = mangled(payload, self.rng)
        manifest = chunks.manifest(payload, self.state.manifest.chunk_bytes)
        self.offers[version] = payload, manifest
        report = self._report(version, manifest, scalars)
        self._say("report", self._with_chunk(report, payload))

    def _with_chunk(self, report: Report, payload: bytes) -> bytes:
        """The report, mostly with a chunk of the update: the only one, or one where none may be."""
        if self.rng.random() < 0.3:
            return encode(report)
        message = reports.join(report, chunks.pack(payload, report.manifest, 0))
        return mangled(message, self.rng) if self.rng.random() < 0.05 else message

    def _bluff(self) -> None:
        """A report of an impossible update."""
        if self.state is not None:
            size = self.rng.choice((0, 1, 1024, 4096, 2**40, 2**53))
            manifest = Manifest(
                chunks=self.rng.choice((1, 3, 4, 1_000_000)),
                chunk_bytes=self.rng.choice((1024, 4096, 16 * 1024 * 1024)),
                bytes=size,
                sha256=self.rng.randbytes(32).hex(),
            )
            report = self._report(self.state.version, manifest, self._scalars(self.state))
            self._say("report", encode(report))

    def _push(self) -> None:
        """Chunks that nobody asked for."""
        if self.offers:
            version = self.rng.choice(sorted(self.offers))
            self._send_chunks(version, self.rng.choices(range(4), k=3))

    def _send_chunks(self, version: str, indices: Any) -> None:
        payload, manifest = self.offers[version]
        for index in indices:
            if index < manifest.chunks:
                data = chunks.pack(payload, manifest, index)
                data = mangled(data, self.rng) if self.rng.random() < 0.05 else data
                self._say(f"update/{version}/{index}", data)

    def _report(self, version: str, manifest: Manifest, scalars: dict[str, float]) -> Report:
        assert self.state is not None
        layout = NETWORK.layout.hash
        return Report(self.process.name, self.state.run, version, layout, manifest, scalars)

    def _scalars(self, state: State) -> dict[str, float]:
        accuracy = self.rng.choice((0.0, 0.75, 1.0))
        scalars = honest_scalars(state.method) | {ACCURACY: accuracy}
        return scalars | {"examples": float(self.examples)} if self.examples else scalars

    def _model(self) -> Vector:
        """The model that the broker keeps for all; zeros if it is not there."""
        state, kept = self.state, self.process.world.broker.retained
        assert state is not None
        topics = [self.topics.model(state.version, i) for i in range(state.manifest.chunks)]
        if any(topic not in kept for topic in topics):
            return np.zeros(NETWORK.layout.size, np.float32)
        data = b"".join(bytes(chunks.unpack(kept[topic].payload).data) for topic in topics)
        names = ("model", *method_of(state.method).sends)
        most = tensors.payload_limit(NETWORK.layout, len(names))
        with Encoding.parse(state.encoding).decompressed(data, most) as file:
            return tensors.decode(NETWORK.layout, file, names)["model"]

    # Whatever comes to its mind

    def _garble(self) -> None:
        version = self.rng.choice((*self.versions, "x", "999999-0000000000000000"))
        chunk = self.rng.choice(("0", "1", "999999", "01", "x"))
        kinds = ("status", "claim", "report", f"update/{version}/{chunk}")
        self._say(self.rng.choice(kinds), garbage(self.rng), self.rng.random() < 0.3)

    def _tamper(self) -> None:
        """A message with fields that hold something else."""
        if self.state is None:
            return
        manifest = Manifest(1, 1024, 10, "0" * 64)
        version, scalars = self.rng.choice(self.versions), self._scalars(self.state)
        kind, message = self.rng.choice(
            (
                ("report", self._report(version, manifest, scalars)),
                ("status", self._status()),
                ("claim", Claim(self.instance)),
            )
        )
        known = (*self.versions, self.state.run, self.state.layout, self.instance)
        retained = self.rng.random() < 0.3
        self._say(kind, tampered(message, known, self.rng), retained)

    def _repeat(self) -> None:
        if self.said:
            self._publish(*self.rng.choice(self.said))

    # Messages

    def _status(self, **fields: Any) -> Status:
        status = Status(
            instance=self.instance,
            online=True,
            device=self.process.name,
            activity="ready",
            layout=NETWORK.layout.hash,
            examples=self.examples,
        )
        return msgspec.structs.replace(status, **fields)

    def _topic(self, kind: str) -> str:
        return self.topics.device(self.process.name, kind)

    def _say(self, kind: str, payload: bytes, retained: bool = False) -> None:
        self.said.append((kind, payload, retained))
        self._publish(kind, payload, retained)

    def _publish(self, kind: str, payload: bytes, retained: bool) -> None:
        assert self.link is not None
        self.link.publish(self._topic(kind), payload, retained)
