"""The agent's shell: carries the commands of its life out, over MQTT, on disk and in a worker.

Training and export run in one worker thread, so that the broker's messages are answered meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fededge import __version__
from fededge.config import AgentConfig
from fededge.errors import (
    DiskFullError,
    FedEdgeError,
    MethodError,
    RefusedError,
    TransportError,
    WireError,
)
from fededge.training import prepare_training
from fededge.transport import session as mqtt
from fededge.transport.presence import Holder, claim_name
from fededge.wire.chunks import Assembly
from fededge.wire.messages import Claim, Reply, State, Status, TaskMessage, decode, encode
from fededge.wire.topics import Topics
from fededge_agent import events
from fededge_agent.egress import Egress
from fededge_agent.events import Pending
from fededge_agent.life import Fetch, Life
from fededge_agent.store import AgentStore, Turn
from fededge_agent.trust import Trust
from fededge_agent.work import Work

__all__ = ["Agent"]

log = logging.getLogger("agent")

TICK = 0.5
SESSION_KEPT = 24 * 3600
MOST_SAID = 1000
"""Characters of a problem in the status."""

LAST_JOB = 10.0
"""Seconds that a stop waits for the worker: an export may finish, a long training may not."""


def _pending(turn: Turn | None) -> Pending | None:
    return None if turn is None else Pending(turn.report.run, turn.report.version)


def _line(text: str) -> str:
    """What a status can say: an announced method may be long and wrong, and we quote it."""
    return "".join(c if c.isprintable() else "?" for c in text[:MOST_SAID])


class Changed:
    """The worker changed what the status says: the loop says it."""


class Failure:
    """The worker met an error: the loop raises it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Agent:
    """One device's agent. The constructor only stores; `run` does."""

    def __init__(self, config: AgentConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.clock = clock
        self.topics = Topics(config.federation)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self.store = AgentStore(Path(config.state))
        self.work = Work(config, self.store)
        self.trust = Trust(config)
        self.unkept: State | None = None
        self.stopping = False

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler."""
        self.stopping = True
        self.inbox.put(events.Tick())

    def run(self) -> None:
        """Take part in the federation until stopped."""
        prepare_training()
        self.work.load_methods()
        self.store.open()
        try:
            self.trust.open()
            self._connect()
            worker = threading.Thread(target=self._work, name="worker", daemon=True)
            worker.start()
            try:
                self._loop()
            finally:
                self.jobs.put(None)
                worker.join(LAST_JOB)
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
        will = mqtt.Will(self._status_topic, encode(self._status(online=False)))
        # Nobody else knows the instance: who took our client id would throw us off the broker.
        name = f"fededge-{config.federation}-{device}-{index.instance[:16]}"
        self.session = self._session(name, will)
        self.egress = Egress(self.session, topics, device, Path(config.state) / "ledger.json")
        self.egress.open()
        self._claim()
        self.holder = Holder(index.instance)
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
        config, instance = self.config, self.store.index.instance
        self.egress.claimed(Claim(instance))
        what = f"device '{config.device}' of federation '{config.federation}'"
        claim_name(config.broker, self.topics.device(config.device), instance, what, Status)

    def _session(self, name: str, will: mqtt.Will) -> mqtt.Session:
        return mqtt.Session(self.config.broker, name, self.inbox, will, SESSION_KEPT)

    def _status(self, online: bool, answers: str = "") -> Status:
        return Status(
            instance=self.store.index.instance,
            online=online,
            answers=answers,
            device=self.config.device,
            activity=self.life.activity if online else "offline",
            layout=self.work.layout_hash,
            examples=self.work.examples,
            software=__version__,
            problem=_line(self.life.problem or self.trust.problem) if online else "",
            **self.work.promotion.describe(),
        )

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
        if self.unkept is not None:
            self._believe(self.unkept)
        if self.work.promotion.look():  # an app's word need not wait for a training
            self._do(events.Announce())
        self._handle(events.Tick())

    def _take(self, event: Any) -> None:
        match event:
            case mqtt.Message():
                try:
                    self._message(event)
                except WireError as error:
                    log.warning("%s: message dropped: %s", event.topic, error)
                event.ack()
            case mqtt.Connected(resumed):
                self._handle(events.Connected(resumed))
            case mqtt.Delivered():
                self.session.delivered(event)
            case mqtt.Lost():
                log.warning("connection to %s lost (%s)", self.session.address, event.reason)
            case mqtt.Failed():
                raise TransportError(event.reason)
            case Failure():
                raise event.error
            case Changed():
                self._do(events.Announce())
            case _:
                self._handle(event)

    def _message(self, message: mqtt.Message) -> None:
        address = self.topics.parse(message.topic)
        payload = message.payload
        if address.kind == "state" and payload:
            self._believe(decode(payload, State))
        elif address.kind == "task":
            self._handle(events.TaskCame(decode(payload, TaskMessage)))
        elif address.kind == "reply":
            self._handle(events.ReplyCame(decode(payload, Reply)))
        elif address.kind == "claim":
            self._handle(events.ClaimCame(decode(payload, Claim).instance))
        elif address.kind == "status" and payload:
            self._defend_name(decode(payload, Status))
        elif address.kind == "model" and payload:
            self._handle(events.ChunkCame(address.version, payload))

    def _believe(self, state: State) -> None:
        """Go by a state that is to be trusted; of another one, the status tells."""
        before, self.unkept = self.trust.problem, None
        try:
            self.trust.check(state)
            self._follow_rollout(state)
            self._handle(events.StateCame(state))
        except DiskFullError:
            self.unkept = state  # to be tried again: there may be space then
            if self.trust.problem != before:
                log.error("%s", self.trust.problem)
        finally:
            if self.trust.problem != before:
                self._do(events.Announce())

    def _follow_rollout(self, state: State) -> None:
        """Withdraw at once what the coordinator withdraws; what it releases is judged first."""
        if self.work.promotion.follow(state):
            self._do(events.Announce())
        if state.rollout is not None:
            self._job(self._release)

    def _defend_name(self, status: Status) -> None:
        rival = self.holder.rival(status)
        if rival is not None and self.holder.must_go(rival):
            raise RefusedError(f"another agent runs as device '{self.config.device}' ({rival})")
        if rival is not None:
            self._do(events.Announce())

    def _handle(self, event: events.Event) -> None:
        for command in self.life.handle(event, self.clock()):
            self._do(command)

    def _do(self, command: events.Command) -> None:
        match command:
            case events.Announce(answers):
                self.egress.status(self._status(online=True, answers=answers))
            case events.Prepare(state):
                self._job(lambda: self._prepare(state))
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
            case events.Train(task, state):
                self._job(lambda: self._train(task, state))
            case events.SendUpdate(chunks):
                self._send(chunks)
            case events.Settle():
                self._settle(command)
            case events.Halt(reason):
                raise RefusedError(f"the federation refuses this agent: {reason}")
            case events.Note(text):
                log.info("%s", text)

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
            self._handle(events.Unsettled(_line(str(error))))
        else:
            log.info("update %s", "accepted" if decision.accepted else "dropped")
            self._handle(events.Settled(decision))

    @contextlib.contextmanager
    def _unless_full(self, version: str) -> Iterator[None]:
        """A full disk ends nothing: the turn failed, and the coordinator asks again later."""
        try:
            yield
        except DiskFullError as error:
            self._handle(events.TurnFailed(version, _line(str(error))))

    def _topics(self, version: str, chunks: Iterable[int]) -> list[str]:
        return [self.topics.model(version, index) for index in chunks]

    def _send(self, chunks: tuple[int, ...]) -> None:
        turn = self.store.outgoing
        if turn is None:
            return
        with self._unless_full(turn.report.version):  # the ledger comes first
            if not chunks:
                self.egress.report(turn.report, self.work.scalars)
            elif (payload := self.store.update()) is None:
                self._handle(events.TurnLost())
            else:
                self.egress.chunks(turn.report, payload, chunks)

    # The worker: what takes long

    def _job(self, job: Callable[[], None]) -> None:
        self.jobs.put(job)

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            self._run_job(job)

    def _run_job(self, job: Callable[[], None]) -> None:
        try:
            job()
        except FedEdgeError as error:
            self.inbox.put(Failure(error))
        except Exception as error:  # a bug in the worker must stop the agent, not hang it
            log.exception("the worker failed")
            self.inbox.put(Failure(error))

    def _prepare(self, state: State) -> None:
        try:
            self.work.prepare(state)
        except (MethodError, WireError) as error:
            self.inbox.put(events.Unable(state, _line(str(error))))
            return
        self.inbox.put(events.Prepared(state, self.work.most_bytes))

    def _train(self, task: TaskMessage, state: State) -> None:
        log.info("round %d: training from %s", task.round + 1, task.version)
        try:
            trained = self.work.train(task, state)
        except WireError as error:
            self.inbox.put(events.Spoiled(task.version, str(error)))
            return
        except (MethodError, DiskFullError) as error:
            self.inbox.put(events.TurnFailed(task.version, _line(str(error))))
            return
        except Exception as error:  # a method may be anybody's: its bug must not end the agent
            if isinstance(error, FedEdgeError):
                raise
            log.exception("the training failed")
            reason = f"the training failed: {type(error).__name__}: {error}"
            self.inbox.put(events.TurnFailed(task.version, _line(reason)))
            return
        self.inbox.put(events.Trained(Pending(state.run, task.version)))
        self.work.follow_up(trained)
        if self.work.exporting is not None:
            self.inbox.put(Changed())

    def _release(self) -> None:
        if self.work.exporting is not None and self.work.promotion.release():
            self.inbox.put(Changed())
