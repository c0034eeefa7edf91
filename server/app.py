"""The coordinator's shell: carries the commands of the rounds out, over MQTT and on disk."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fededge.config import CoordinatorConfig
from fededge.errors import DiskFullError, RefusedError, TransportError, WireError
from fededge.memory import return_free_memory
from fededge.transport.presence import Holder, claim_name
from fededge.transport.session import Connected, Delivered, Failed, Lost, Message, Session, Will
from fededge.wire.messages import (
    Claim,
    Presence,
    Report,
    State,
    Status,
    TaskMessage,
    decode,
    encode,
)
from fededge.wire.signing import read_signing_key
from fededge.wire.topics import Topics
from fededge_server import events
from fededge_server.board import Board
from fededge_server.merging import Merging
from fededge_server.rollout import Plan, Planned, RoundsDone, Staging
from fededge_server.rounds import Rounds
from fededge_server.store import Progress, Store
from fededge_server.told import describe
from fededge_server.versions import Versions

__all__ = ["Coordinator"]

log = logging.getLogger("coordinator")

TICK = 0.5
SPARE_UPDATES = 4
"""A disk that was full takes updates again when so many fit."""

SESSION_KEPT = 24 * 3600


class Coordinator:
    """One federation's coordinator. The constructor only stores; `run` does."""

    def __init__(
        self,
        config: CoordinatorConfig,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.clock = clock
        self.wall = wall
        self.topics = Topics(config.federation)
        self.instance = uuid.uuid4().hex
        self.holder = Holder(self.instance)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.store = Store(Path(config.state))
        self.versions = Versions(config, self.store)
        self.opened: dict[int, float] = {}
        self.unmerged: events.Merge | None = None
        self.stopping = False

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler."""
        self.stopping = True
        self.inbox.put(events.Tick())

    def run(self) -> Progress:
        """Run the rounds that are left, and return where the run stands then."""
        return_free_memory()
        self._prepare()
        try:
            self._run()
        finally:
            self.versions.network.stop()
        return self.versions.progress

    def _run(self) -> None:
        self.store.open()
        try:
            self._claim()
            self._resume()
            self._connect()
            try:
                self._loop()
            finally:
                self.session.stop(self._presence(online=False))
        finally:
            self.store.close()

    # Set-up

    def _prepare(self) -> None:
        config = self.config
        self.key = read_signing_key(Path(config.signing_key)) if config.signing_key else None
        self.versions.prepare()

    def _resume(self) -> None:
        """Go on where the journal stands, or begin a run."""
        config, versions, store = self.config, self.versions, self.store
        run = store.fact("run") or uuid.uuid4().hex
        session = store.fact("session") or uuid.uuid4().hex[:16]
        store.agree({**versions.facts(run), "session": session})
        versions.resume()
        layout, method = versions.layout, versions.method
        facts = events.Facts(
            run=run,
            seed=config.seed,
            layout=layout.hash,
            scalars=method.scalars,
            chunk_bytes=config.transfer.chunk_bytes,
            payload_limit=versions.update_limit,
        )
        self.merging = Merging(
            store, layout, method, versions.encoding, config.rounds, config.robust
        )
        done, version = versions.progress.rounds_done, versions.progress.version
        self.rounds = Rounds(facts, config.rounds, done, version, store.memory())
        self.staging = None
        if config.rollout is not None:
            plan, known = store.plan() or Plan.initial(done), {*store.memory().known}
            self.staging = Staging(config.rollout, run, plan, known, done)
        self._clear_spool({report.version for report in self.rounds.stored.values()})

    def _claim(self) -> None:
        what = f"a coordinator of federation '{self.config.federation}'"
        claim_name(self.config.broker, self.topics.coordinator, self.instance, what)

    def _connect(self) -> None:
        config, topics = self.config, self.topics
        # A secret of the state folder: who took our client id would throw us off the broker.
        name = f"fededge-{config.federation}-coordinator-{self.store.fact('session')}"
        will = self._presence(online=False)
        self.session = self._session(name, will)
        for kind in ("claim", "status"):
            self.session.subscribe(f"{topics.coordinator}/{kind}")
        self.session.subscribe(topics.state)
        for kind in ("status", "report"):
            self.session.subscribe(topics.device("+", kind))
        self.session.subscribe(topics.update("+", "+"))
        self.board = self._board()
        self.session.start()
        self._clear_previous()

    def _board(self) -> Board:
        board = Board(
            session=self.session,
            topics=self.topics,
            store=self.store,
            describe=self._state,
            payload=self.versions.payload,
            chunk_bytes=self.config.transfer.chunk_bytes,
            key=self.key,
            wall=self.wall,
            issued=int(self.store.fact("issued") or 0),
        )
        board.prepare()
        return board

    def _clear_previous(self) -> None:
        """A coordinator that was killed at the wrong moment left the version before behind."""
        for before in self.store.history()[-2:-1]:
            self.board.outdate(before.version, self.versions.most_chunks)

    def _session(self, name: str, will: Will) -> Session:
        return Session(self.config.broker, name, self.inbox, will, SESSION_KEPT)

    def _presence(self, online: bool, answers: str = "") -> Will:
        presence = Presence(self.instance, online, answers)
        return Will(f"{self.topics.coordinator}/status", encode(presence))

    # The loop: one thread decides

    def _loop(self) -> None:
        next_tick = self.clock() + TICK
        while not self.stopping:
            settled = self.staging is None or self.staging.settled
            if self.rounds.phase == "done" and self.board.settled and settled:
                return
            with contextlib.suppress(queue.Empty):
                self._take(self.inbox.get(timeout=max(0.0, next_tick - self.clock())))
            if self.clock() >= next_tick:
                next_tick = self.clock() + TICK
                self._tick()

    def _tick(self) -> None:
        self._look_for_space()
        self.board.refresh()
        self._handle(events.Tick())

    def _take(self, event: Any) -> None:
        match event:
            case Message():
                try:
                    self._message(event)
                except WireError as error:
                    log.warning("%s: message dropped: %s", event.topic, error)
                event.ack()
            case Connected():
                self.board.look()
                self._publish_presence()  # what the broker keeps comes before its echo
            case Delivered():
                self.board.delivered(event)
            case Lost():
                self.board.look()
                log.warning("connection to %s lost (%s)", self.session.address, event.reason)
            case Failed():
                raise TransportError(event.reason)

    def _message(self, message: Message) -> None:
        address = self.topics.parse(message.topic)
        if address.kind == "coordinator claim":
            claim = decode(message.payload, Claim)
            self._publish_presence(answers=claim.instance)
        elif address.kind == "coordinator status":
            self._defend_name(decode(message.payload, Presence), message.retained)
        elif address.kind == "state" and message.payload:
            self.board.came(message.payload, decode(message.payload, State), message.retained)
        elif address.kind == "status" and message.payload:
            status = decode(message.payload, Status)
            self._handle(events.StatusCame(address.device, status))
        elif address.kind == "report":
            report = decode(message.payload, Report)
            self._handle(events.ReportCame(address.device, report))
        elif address.kind == "update":
            self._handle(events.ChunkCame(address.device, address.version, message.payload))

    def _defend_name(self, presence: Presence, retained: bool) -> None:
        if presence.instance == self.instance and not retained:
            self.board.looked()
        rival = self.holder.rival(presence)
        if rival is not None and self.holder.must_go(rival):
            name = self.config.federation
            raise RefusedError(f"another coordinator of federation '{name}' runs ({rival})")
        if rival is not None:
            self._publish_presence()

    def _roll_out(self, event: events.StatusCame | events.Tick | RoundsDone) -> None:
        if self.staging is None or (self.rounds.full and isinstance(event, events.Tick)):
            return
        before = self.staging.plan
        for command in self.staging.handle(event, self.clock()):
            if isinstance(command, Planned):
                self.staging.plan = before  # nobody is told of what is not on disk
                with self._unless_full():
                    self.store.keep_plan(command.plan)
                    self.staging.plan = command.plan
                self.board.put_state()
            else:
                self._do(command)

    def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.StatusCame | events.Tick):
            self._roll_out(event)
        for command in self.rounds.handle(event, self.clock()):
            self._do(command)

    def _do(self, command: events.Command) -> None:
        match command:
            case events.Remember(number, invited, known):
                with self._unless_full():
                    self.store.remember(number, invited, known)
            case events.Open():
                self.opened.setdefault(command.round, self.clock())
                log.info("round %d: asking %s", command.round + 1, ", ".join(command.devices))
                self.board.put_state()
            case events.Invite() if self.rounds.full:
                pass  # that it is asked may not be on disk; it would be refused after a restart
            case events.Invite(device, number, version):
                task = TaskMessage(device, number, version)
                self._publish(self.topics.device(device, "task"), task)
            case events.Answer(device, reply):
                self._publish(self.topics.device(device, "reply"), reply)
            case events.Expect(device, report):
                with self._unless_full():
                    self.store.expect(device, report)
            case events.Keep(device, version, offset, data):
                with self._unless_full():
                    self.store.keep(version, device, offset, data)
            case events.Check(device, report):
                if device in self.rounds.checking:  # not if its last piece found the disk full
                    self._check(device, report)
            case events.Discard(device, version):
                self.store.discard(version, device)
            case events.Refuse():
                with self._unless_full():
                    self.store.refuse(self.rounds.round, command)
            case events.Merge():
                self._merge(command)
            case events.Finish():
                log.info("all %d rounds are done", self.config.rounds.count)
            case events.Note(text, device):
                log.info("%s", f"{device}: {text}" if device else text)

    # Commands that take more than a line

    def _check(self, device: str, report: Report) -> None:
        verdict: events.Event | None = None
        with self._unless_full():
            try:
                self.merging.check(device, report, self.versions.current(self.rounds.round))
            except WireError as error:
                verdict = events.Bad(device, str(error), report.version)
            else:
                self.store.accept(device, report, self.rounds.round)
                verdict = events.Stored(device, report)
        if verdict is not None:
            self._handle(verdict)

    @contextlib.contextmanager
    def _unless_full(self) -> Iterator[None]:
        """A full disk ends nothing: no update is taken until there is space again."""
        try:
            yield
        except DiskFullError as error:
            log.error("%s", error)
            self._handle(events.Full(True))
            self.board.put_state()

    def _look_for_space(self) -> None:
        if not self.rounds.full:
            return
        if self.store.free_bytes > SPARE_UPDATES * self.versions.update_limit:
            self._handle(events.Full(False))
            self.board.put_state()  # who has an update asks about it at every state
            if self.unmerged is not None:
                self._merge(self.unmerged)

    def _merge(self, command: events.Merge) -> None:
        """Make the next version; again, if the disk was full."""
        versions = self.versions
        old, self.unmerged = versions.progress.version, command
        with self._unless_full():
            current = versions.current(self.rounds.round)
            model, memory = self.merging.merge(command.reports, command.devices, current)
            del current  # it holds the model that is to go
            scalars = {device: dict(report.scalars) for device, report in command.reports.items()}
            seconds = self.clock() - self.opened.get(command.round, self.clock())
            versions.advance(command.round + 1, model, memory, scalars, seconds)
            self.opened.clear()
            self.unmerged = None
        if self.unmerged is None:
            self._go_on(old, command.reports)

    def _go_on(self, old: str, reports: Mapping[str, Report]) -> None:
        """From one version to the next."""
        commands = self.rounds.handle(events.Merged(self.versions.progress.version), self.clock())
        self._clean_up(reports)
        self.board.outdate(old, self.versions.most_chunks)
        self.board.put_model()
        if self.rounds.phase != "open":
            self.board.put_state()
        for command in commands:
            self._do(command)
        self._roll_out(RoundsDone(self.versions.progress.rounds_done))

    def _clean_up(self, reports: Mapping[str, Report]) -> None:
        """Updates that are in a version, and models that are too old for any late one."""
        config = self.config
        for device, report in reports.items():
            self.store.discard(report.version, device)
        self._clear_spool(set())
        if config.keep_versions:
            stale = config.rounds.max_staleness + 1 if config.rounds.folds else 1
            self.store.prune(max(config.keep_versions, stale))

    def _clear_spool(self, needed: set[str]) -> None:
        """Keep what may still come to something: of this version, or of a late update."""
        late = self.rounds.recent.keys() if self.config.rounds.folds else set()
        self.store.clear_spool(keep={*needed, *late, self.rounds.version})

    # What the world is told

    def _publish(self, topic: str, message: Any, retain: bool = False) -> None:
        self.session.publish(topic, encode(message), retain)

    def _publish_presence(self, answers: str = "") -> None:
        presence = self._presence(online=True, answers=answers)
        self.session.publish(presence.topic, presence.payload, retain=True)

    def _state(self) -> State:
        assert self.board.manifest is not None
        return describe(
            self.config,
            self.rounds,
            self.versions,
            self.board.manifest,
            self.staging,
            self.clock(),
        )
