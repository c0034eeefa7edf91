"""The agent's shell: carries the commands of its life out, over MQTT, on disk and in a worker."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fededge import __version__
from fededge._internal.logs import RateLimit
from fededge.config import AgentConfig
from fededge.data.local import check_device_data
from fededge.errors import (
    DiskFullError,
    EgressError,
    TransportError,
    WireError,
)
from fededge.training import prepare_training
from fededge.transport import session as mqtt
from fededge.transport.presence import Holder, claim_name, new_claim
from fededge.wire.chunks import Assembly
from fededge.wire.messages import (
    Claim,
    Reply,
    Report,
    State,
    Status,
    TaskMessage,
    decode,
    encode,
)
from fededge.wire.topics import Topics
from fededge_agent.egress import Egress
from fededge_agent.machine import events
from fededge_agent.machine.caution import Caution
from fededge_agent.machine.events import Pending
from fededge_agent.machine.life import Fetch, Life
from fededge_agent.store import AgentStore, Turn
from fededge_agent.trust import Trust
from fededge_agent.turn_runner import Work
from fededge_agent.worker import Changed, Failure, Worker, line

__all__ = ["Agent"]

log = logging.getLogger("agent")

TICK = 0.5
SIGNS_OF_LIFE = 3
"""Statuses that a device sends within its lease: two may be lost or late."""

SESSION_KEPT = 24 * 3600


def _pending(turn: Turn | None) -> Pending | None:
    return None if turn is None else Pending(turn.report.run, turn.report.version)


def _public(secret: str) -> str:
    """The instance that the world may know: the client id has the secret that it is made from."""
    return hashlib.sha256(f"fededge instance {secret}".encode()).hexdigest()[:32]


class Agent:
    """One device's agent. The constructor only stores; `run` does."""

    def __init__(self, config: AgentConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.clock = clock
        self.topics = Topics(config.federation)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.store = AgentStore(Path(config.state))
        self.work = Work(config, self.store)
        self.worker = Worker(self.work, self.inbox)
        self.trust = Trust(config, self.store)
        self.unkept: State | None = None
        self.connected = False
        self.announced = -math.inf
        self.dropped = RateLimit(log, first=5, devices=1)
        self.notes = RateLimit(log, first=20, devices=1)
        self.stopping = False

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler."""
        self.stopping = True
        self.inbox.put(events.Tick())

    def run(self) -> None:
        """Take part in the federation until stopped."""
        prepare_training()
        check_device_data(self.config.data)  # what is wrong with it later ends nothing
        self.work.load_methods()
        self.store.open()
        try:
            self.trust.open()
            self._connect()
            self.worker.start()
            try:
                self._loop()
            finally:
                self.worker.stop()
                self.session.stop(self.egress.last_words(self._status(online=False)))
        finally:
            self.store.close()

    # Set-up

    @property
    def _status_topic(self) -> str:
        return self.topics.device(self.config.device, "status")

    def _connect(self) -> None:
        config, topics, device = self.config, self.topics, self.config.device
        index = self.store.index
        self.life = Life(
            device,
            held="" if self.trust.fresh else index.held,  # it came before we trusted a key
            pending=_pending(index.turn),
            settled=_pending(index.settled),
            late=_pending(index.late),
            fetch=self._coming(),
        )
        self.holder = Holder(_public(index.instance))
        self.caution = Caution(index.run)
        will = mqtt.Will(self._status_topic, encode(self._status(online=False)))
        # Nobody else knows this instance: who took our client id would throw us off the broker.
        name = f"fededge-{config.federation}-{device}-{index.instance[:16]}"
        self.session = self._session(name, will)
        self.egress = Egress(self.session, topics, device, Path(config.state) / "ledger.json")
        self.egress.open(begun=index.settled is not None or index.count > 1)
        self._claim()
        self.session.subscribe(topics.state)
        for kind in ("task", "reply", "claim", "status"):
            self.session.subscribe(topics.device(device, kind))
        self.session.start()
        log.info("connected to %s as device '%s'", self.session.address, device)

    def _coming(self) -> Fetch | None:
        """The model that an earlier process was fetching."""
        coming = None if self.trust.fresh else self.store.coming()
        if coming is None:
            return None
        version, manifest, have = coming
        return Fetch(version, Assembly(manifest, self.clock(), have=set(have)))

    def _claim(self) -> None:
        config, claim = self.config, new_claim()
        self.egress.claimed(claim)
        what = f"device '{config.device}' of federation '{config.federation}'"
        base = self.topics.device(config.device)
        claim_name(config.broker, base, claim, self.holder.instance, what, Status)

    def _session(self, name: str, will: mqtt.Will) -> mqtt.Session:
        return mqtt.Session(self.config.broker, name, self.inbox, will, SESSION_KEPT)

    def _status(self, online: bool, answers: str = "") -> Status:
        return Status(
            instance=self.holder.instance,
            online=online,
            answers=answers,
            device=self.config.device,
            activity=self.life.activity if online else "offline",
            layout=self.work.layout_hash,
            examples=self.work.examples,
            software=__version__,
            problem=line(self._problem) if online else "",
            **self.work.promotion.describe(),
        )

    @property
    def _problem(self) -> str:
        rival = self.holder.rival
        contested = f"another agent runs as device '{self.config.device}', or poses as it ({rival})"
        return self.life.problem or self.trust.problem or contested * bool(rival)

    # The loop: one thread decides

    def _loop(self) -> None:
        next_tick = self.clock() + TICK
        while not self.stopping:
            with contextlib.suppress(queue.Empty):
                self._take(self.inbox.get(timeout=max(0.0, next_tick - self.clock())))
            if self.clock() >= next_tick:
                next_tick = self.clock() + TICK
                self._tick()

    def _tick(self) -> None:
        for limit in (self.dropped, self.notes):
            limit.tick(self.clock())
        if self.unkept is not None:
            self._believe(self.unkept)
        stood = self.caution.tick(self.clock())
        if stood is not None:
            self._go_by(stood)
        # An app's word need not wait for a training, nor does a sign of life.
        if self.work.promotion.look() or self._lease_runs_out:
            self._do(events.Announce())
        self._keep_name()
        self._handle(events.Tick())

    @property
    def _lease_runs_out(self) -> bool:
        """Whether it is time for a sign of life; while the link is down none would pile up."""
        state = self.life.state
        if state is None or not self.connected:
            return False
        return self.clock() - self.announced >= state.lease / SIGNS_OF_LIFE

    def _take(self, event: Any) -> None:
        match event:
            case mqtt.Incoming():
                try:
                    self._message(event)
                except WireError as error:
                    text = f"message on {event.topic} dropped: {error}"
                    self.dropped.say(logging.WARNING, "", text, self.clock())
                event.ack()
            case mqtt.Connected(resumed):
                self.connected = True
                self._handle(events.Connected(resumed))
            case mqtt.Delivered():
                self.session.delivered(event)
            case mqtt.Lost():
                self.connected = False
                self.holder.lost()
                log.warning("connection to %s lost (%s)", self.session.address, event.reason)
            case mqtt.Failed():
                raise TransportError(event.reason)
            case Failure():
                raise event.error
            case Changed():
                self._do(events.Announce())
            case _:
                self._handle(event)

    def _message(self, message: mqtt.Incoming) -> None:
        address = self.topics.parse(message.topic)
        payload = message.payload
        if address.kind == "state" and payload:
            self._believe(decode(payload, State))
        elif address.kind == "task":
            task = decode(payload, TaskMessage)
            self._check_sender(task)
            self._handle(events.TaskCame(task))
        elif address.kind == "reply":
            reply = decode(payload, Reply)
            self._check_sender(reply)
            self._handle(events.ReplyCame(reply))
        elif address.kind == "claim":
            self._handle(events.ClaimCame(decode(payload, Claim).nonce))
        elif address.kind == "status":
            self._defend_name(payload)
        elif address.kind == "model" and payload:
            self._handle(events.ChunkCame(address.version, payload))

    def _check_sender(self, message: TaskMessage | Reply) -> None:
        """Whoever can write on our topics may say anything there: also what was for others."""
        if message.device != self.config.device:
            raise WireError(f"it is for device '{message.device}'")
        self.trust.vouch(message)

    def _believe(self, state: State) -> None:
        """Go by a state that is to be trusted; of another one, the status tells."""
        before, self.unkept = self.trust.problem, None
        try:
            self.trust.check(state)
            if self.trust.key or self.caution.weigh(state, self.clock()):
                self._go_by(state)
            else:
                text = f"a state with other terms (run '{state.run}') is believed if it stands"
                self._warn(text)
        except DiskFullError:
            self.unkept = state  # to be tried again: there may be space then
            if self.trust.problem != before:
                log.error("%s", self.trust.problem)
        finally:
            if self.trust.problem != before:
                self._do(events.Announce())

    def _go_by(self, state: State) -> None:
        self._follow_rollout(state)
        self._handle(events.StateCame(state))

    def _follow_rollout(self, state: State) -> None:
        """Withdraw at once what the coordinator withdraws; what it releases is judged first."""
        if self.work.promotion.follow(state):
            self._do(events.Announce())
        if state.rollout is not None:
            self.worker.release()

    def _defend_name(self, payload: bytes) -> None:
        """What is said in our name by others is overwritten: nobody must go by it for long."""
        status = None
        with contextlib.suppress(WireError):
            status = decode(payload, Status)
        self.holder.hears(payload, status, self.clock())

    def _warn(self, text: str) -> None:
        self.notes.say(logging.WARNING, "", text, self.clock())

    def _keep_name(self) -> None:
        if self.holder.due(self.clock()):
            if self.holder.rival:
                self._warn(self._problem)
            self._do(events.Announce())

    def _handle(self, event: events.Event) -> None:
        for command in self.life.handle(event, self.clock()):
            self._do(command)

    def _do(self, command: events.Command) -> None:
        match command:
            case events.Announce(answers):
                self.announced = self.clock()
                said = self.egress.status(self._status(online=True, answers=answers))
                self.holder.says(said, self.clock())
            case events.Prepare(state):
                self.worker.prepare(state)
            case events.Expect(version, manifest):
                with self._unless_full(version):
                    self.store.expect(version, manifest)
            case events.Follow(version, chunks):
                self.session.subscribe(*self._topics(version, chunks), lasting=False)
            case events.Unfollow(version, chunks):
                self.session.unsubscribe(*self._topics(version, chunks))
            case events.Keep(version, offset, data):
                with self._unless_full(version):
                    self.store.keep(version, offset, data)
            case events.CheckModel():
                self._check_model(command)
            case events.Train(state):
                self.worker.train(state)
            case events.Abandon():
                self.worker.abandon()
            case events.SendUpdate(chunks):
                self._send(chunks)
            case events.Settle():
                self._settle(command)
            case events.Note(text):
                self.notes.say(logging.INFO, "", text, self.clock())

    def _check_model(self, command: events.CheckModel) -> None:
        with self._unless_full(command.version):
            try:
                self.work.check_model(command.version, command.manifest)
            except WireError as error:
                self._handle(events.Spoiled(command.version, str(error)))
            else:
                self._handle(events.Fetched(command.version))

    def _settle(self, decision: events.Settle) -> None:
        """Keep or drop what follows the update. Nothing else may begin before that is on disk."""
        self.egress.drop()
        try:
            self.store.settle(decision.accepted, decision.late)
        except DiskFullError as error:
            self._handle(events.Unsettled(line(str(error))))
        else:
            log.info("update %s", "accepted" if decision.accepted else "dropped")
            self._handle(events.Settled(decision))

    @contextlib.contextmanager
    def _unless_full(self, version: str) -> Iterator[None]:
        """A full disk ends nothing: the turn failed, and the coordinator asks again later."""
        try:
            yield
        except DiskFullError as error:
            self._handle(events.TurnFailed(version, line(str(error))))

    def _topics(self, version: str, chunks: Iterable[int]) -> list[str]:
        return [self.topics.model(version, index) for index in chunks]

    def _send(self, chunks: tuple[int, ...]) -> None:
        turn = self.store.outgoing
        if turn is None:
            return
        with self._unless_full(turn.report.version):  # the ledger comes first
            if not chunks:
                self._report(turn.report)
            elif (payload := self.store.update()) is None:
                self._handle(events.TurnLost())
            else:
                self.egress.chunks(turn.report, payload, chunks)

    def _report(self, report: Report) -> None:
        try:
            self.egress.report(report, self.work.scalars)
        except EgressError as error:  # the state names another method than we trained with
            self._warn(f"the update is not reported: {error}")
