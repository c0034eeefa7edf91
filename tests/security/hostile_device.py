"""An enrolled device turned hostile: it has its certificate, and speaks the protocol itself."""

from __future__ import annotations

import io
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pytest

from fededge.config import BrokerConfig
from fededge.flat import FlatModel, Layout, Vector
from fededge.model_spec import ModelSpec
from fededge.models import build_for
from fededge.transport.session import Incoming, Session, Will
from fededge.wire import chunks, reports, tensors
from fededge.wire.container import Archive, TensorSpec, raw
from fededge.wire.messages import Reply, Report, State, Status, TaskMessage, decode, encode
from fededge.wire.topics import Topics

__all__ = ["HostileDevice", "Update"]

T = TypeVar("T")

PATIENCE = 60.0
ASK_AGAIN = 1.0
EXAMPLES = 100


@dataclass(frozen=True)
class Update:
    """An update to send: its report, and the payload whose chunks may be requested."""

    report: Report
    payload: bytes

    def chunk(self, index: int) -> bytes:
        return chunks.pack(self.payload, self.report.manifest, index)


Turn = Callable[["HostileDevice", Vector], "Update | None"]
"""Makes the device's update for a task, from the model that the task names."""


@lru_cache(maxsize=4)
def _layout(spec: ModelSpec) -> Layout:
    return FlatModel(build_for(spec, 0)).layout


class HostileDevice:
    """Follows the federation as a device does, and says anything in its own name.

    A thread hears what comes, and sends the chunks that are asked for of what was delivered. With a
    `turn` it also answers every task.
    """

    def __init__(self, broker: BrokerConfig, federation: str, device: str) -> None:
        self.topics = Topics(federation)
        self.device = device
        self.instance = uuid.uuid4().hex
        self.turn: Turn | None = None
        self.state: State | None = None
        self.states: list[State] = []
        self.tasks: list[TaskMessage] = []
        self.replies: list[Reply] = []
        self._coming: dict[str, dict[int, bytes]] = {}
        self._sent: dict[str, Update] = {}
        self._todo: TaskMessage | None = None
        self._stopping = False
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        will = Will(self._topic("status"), encode(self._status(online=False)))
        self.session = Session(broker, f"hostile-{self.instance[:12]}", inbox, will)
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        for topic in (self.topics.state, self.topics.model("+")):
            self.session.subscribe(topic)
        for kind in ("task", "reply"):
            self.session.subscribe(self._topic(kind))
        self.session.start()
        self._thread.start()

    def stop(self) -> None:
        """Leave nothing behind."""
        self._stopping = True
        self._thread.join(PATIENCE)
        self.session.stop(Will(self._topic("status"), b""))

    # Received messages

    def _listen(self) -> None:
        while not self._stopping:
            try:
                event = self.session.inbox.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(event, Incoming):
                if event.payload:
                    self._hear(event)
                event.ack()
                self._work()

    def _hear(self, message: Incoming) -> None:
        address = self.topics.parse(message.topic)
        if address.kind == "state":
            self.state = decode(message.payload, State)
            self.states.append(self.state)
        elif address.kind == "model":
            chunk = chunks.unpack(message.payload)
            self._coming.setdefault(address.version, {})[chunk.index] = bytes(chunk.data)
        elif address.kind == "task":
            self.tasks.append(decode(message.payload, TaskMessage))
            self._todo = self.tasks[-1]
        elif address.kind == "reply":
            self._obey(decode(message.payload, Reply))

    def _work(self) -> None:
        """Answer a task, once its state and its model are there: it may be ahead of them."""
        task, state = self._todo, self.state
        if self.turn is None or task is None or state is None or task.version != state.version:
            return
        if len(self._coming.get(task.version, {})) >= state.manifest.chunks:
            self._todo = None
            if update := self.turn(self, self.model(task.version)):
                self.delivers(update)

    def _obey(self, reply: Reply) -> None:
        self.replies.append(reply)
        update = self._sent.get(reply.version)
        if reply.kind == "resend" and update is not None:
            for index in reply.chunks:
                self.sends(update, index)

    def wait(self, condition: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
        """The condition's value once it is true."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.02)
        pytest.fail(f"{self.device} waited {patience:.0f} s for {what}; heard {self.replies[-5:]}")

    def asked(self, number: int = 0) -> TaskMessage:
        """The task of a round, or the next one from it on."""
        task: TaskMessage = self.wait(
            lambda: next((t for t in self.tasks if int(t.version[:6]) >= number), None),
            f"a task of round {number}",
        )
        return task

    # Facts

    @property
    def now(self) -> State:
        return self.wait(lambda: self.state, "a state")

    @property
    def layout(self) -> Layout:
        return _layout(self.now.model)

    def model(self, version: str = "") -> Vector:
        """A version's numbers; by default those of the current one."""
        version = version or self.now.version
        count = self.now.manifest.chunks
        self.wait(lambda: len(self._coming.get(version, {})) >= count, f"model {version}")
        parts = self._coming[version]
        archive = Archive.open(io.BytesIO(b"".join(parts[i] for i in sorted(parts))), 1 << 20)
        model = np.empty(self.layout.size, np.float32)
        for entry in self.layout.entries:
            archive.read(entry.name, TensorSpec("F32", entry.shape), raw(model[entry.span]))
        return model

    # Sent messages

    def says(self, kind: str, payload: bytes, retain: bool = False) -> None:
        self.session.publish(self._topic(kind), payload, retain)

    def announces(self, **fields: Any) -> None:
        """Its status, by default that it is there and has nothing to do."""
        usual = {"activity": "ready", "layout": self.now.layout, "examples": EXAMPLES}
        self.says("status", encode(self._status(**{**usual, **fields})), retain=True)

    def update(
        self,
        model: Vector,
        scalars: Mapping[str, float] | None = None,
        examples: float = EXAMPLES,
        **fields: Any,
    ) -> Update:
        """An update with these numbers; as an honest report would say it, but for `fields`."""
        state = self.now
        payload = tensors.encode(self.layout, {"model": model.astype(np.float32)})
        usual = {"examples": float(examples), "steps": float(-(-examples // 32)), "loss": 1.0}
        said = {
            "device": self.device,
            "run": state.run,
            "version": state.version,
            "layout": state.layout,
            "manifest": chunks.manifest(payload, state.manifest.chunk_bytes),
            "scalars": {**usual, **(scalars or {})},
        }
        return Update(Report(**{**said, **fields}), payload)

    def reports(self, update: Update) -> None:
        self.says("report", encode(update.report))

    def sends(self, update: Update, index: int, retain: bool = False) -> None:
        topic = self.topics.update(self.device, update.report.version, index)
        self.session.publish(topic, update.chunk(index), retain)

    def delivers(self, update: Update) -> None:
        """Report it, in one message with its only chunk; else chunks follow if asked for."""
        self._sent[update.report.version] = update
        if update.report.manifest.chunks == 1:
            self.says("report", reports.join(update.report, update.chunk(0)))
        else:
            self.reports(update)

    def tries(self, update: Update) -> Reply:
        """Deliver it, and hear what is said to it; asked again, as while a version is made."""
        since, asked = len(self.replies), time.monotonic()
        self.delivers(update)

        def answered() -> Reply | None:
            nonlocal asked
            if time.monotonic() - asked > ASK_AGAIN:
                asked = time.monotonic()
                self.reports(update)
            return self._verdict(update.report.version, since)

        return self.wait(answered, f"an answer for {update.report.version}")

    def _verdict(self, version: str, since: int) -> Reply | None:
        """The final reply to an update; None if there is none yet."""
        told = (r for r in self.replies[since:] if r.version == version and r.kind != "resend")
        return next(told, None)

    def _topic(self, kind: str) -> str:
        return self.topics.device(self.device, kind)

    def _status(self, **fields: Any) -> Status:
        usual = {"instance": self.instance, "online": True, "device": self.device}
        return Status(**{**usual, **fields})
