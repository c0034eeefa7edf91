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

import msgspec

from fededge._internal.logs import RateLimit
from fededge._internal.malloc import return_free_memory
from fededge._internal.plain_text import plain
from fededge.config import CoordinatorConfig
from fededge.credentials.signing_keys import read_signing_key
from fededge.errors import DiskFullError, RefusedError, StoreError, TransportError, WireError
from fededge.methods import Hyper
from fededge.transport.presence import Holder, claim_name, new_claim
from fededge.transport.session import Connected, Delivered, Failed, Lost, Message, Session, Will
from fededge.wire.messages import (
    Claim,
    Presence,
    Reply,
    Report,
    State,
    Status,
    TaskMessage,
    decode,
    encode,
)
from fededge.wire.signing import sign, signed_by
from fededge.wire.topics import Topics
from fededge_server.machine import events
from fededge_server.machine.health import Health
from fededge_server.machine.rollout import Plan, Planned, RoundsDone, Staging
from fededge_server.machine.rounds import Rounds
from fededge_server.merging import MergeResult, Merging
from fededge_server.publisher import Publisher
from fededge_server.rollback import RollbackRequest
from fededge_server.state_message import describe
from fededge_server.store import Progress, Store
from fededge_server.sweeper import Sweeper
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
        self.asked: Claim | None = None
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.store = Store(Path(config.state))
        self.versions = Versions(config, self.store)
        self.health = Health(config.robust.max_drop)
        self.request = RollbackRequest(Path(config.state))
        self.problem = ""
        self.opened: dict[int, float] = {}
        self.unmerged: events.Merge | None = None
        self.dropped = RateLimit(log, first=5, devices=100)
        self.notes = RateLimit(log, first=20, devices=1000)
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
        facts = events.RunFacts(
            run=run,
            seed=config.seed,
            layout=layout.hash,
            scalars=method.scalars,
            chunk_bytes=config.transfer.chunk_bytes,
            payload_limit=versions.update_limit,
            norm_factor=config.robust.norm_factor,
        )
        hyper = Hyper(**msgspec.structs.asdict(config.training))
        self.merging = Merging(
            store, layout, method, versions.encoding, config.rounds, config.robust, hyper
        )
        for version, accuracy, accuracies in store.scores():
            self.health.evaluate(version, accuracy)
            self.health.hear(events.Judge(version, 0, 0, accuracies))
        done, version = versions.progress.rounds_done, versions.progress.version
        self.rounds = Rounds(facts, config.rounds, done, version, store.recall())
        self.staging = None
        if config.rollout is not None:
            plan, known = store.plan() or Plan.initial(done), {*store.recall().known}
            self.staging = Staging(config.rollout, run, plan, known, done)
        self._clear_spool({report.version for report in self.rounds.stored.values()})

    def _claim(self) -> None:
        what = f"a coordinator of federation '{self.config.federation}'"
        claim_name(
            self.config.broker,
            self.topics.coordinator,
            new_claim(),
            self.instance,
            what,
            Presence,
            self._vouched,
        )

    def _connect(self) -> None:
        config, topics = self.config, self.topics
        # A secret of the state folder: who took our client id would throw us off the broker.
        name = f"fededge-{config.federation}-coordinator-{self.store.fact('session')}"
        will = self._presence(online=False)
        self.session = self._session(name, will)
        self.session.subscribe(f"{topics.coordinator}/status", topics.state)
        self.session.subscribe(topics.device("+", "status"))
        self.sweeper = Sweeper(self.session, topics)
        self.sweeper.subscribe()  # last: what is retained elsewhere must not wait behind litter
        self.board = self._board()
        self.session.start()
        self._clear_previous()

    def _board(self) -> Publisher:
        board = Publisher(
            session=self.session,
            topics=self.topics,
            store=self.store,
            describe=self._state,
            payload=self.versions.payload,
            most_chunks=self.versions.most_chunks,
            chunk_bytes=self.config.transfer.chunk_bytes,
            key=self.key,
            wall=self.wall,
            warn=self._warn,
            issued=int(self.store.fact("issued") or 0),
        )
        board.prepare()
        return board

    def _clear_previous(self) -> None:
        """A coordinator that was killed at the wrong moment left the version before behind."""
        for before in self.store.history()[-2:-1]:
            self.board.outdate(before.version)

    def _session(self, name: str, will: Will) -> Session:
        return Session(self.config.broker, name, self.inbox, will, SESSION_KEPT)

    def _presence(self, online: bool, answers: str = "") -> Will:
        presence = Presence(self.instance, online, self.config.federation, answers)
        if self.key is not None:
            presence = sign(presence, self.key)
        return Will(f"{self.topics.coordinator}/status", encode(presence))

    # The loop: one thread decides

    def _loop(self) -> None:
        next_tick = self.clock() + TICK
        while not self.stopping:
            if self.rounds.phase == "done" and self._settled:
                return
            with contextlib.suppress(queue.Empty):
                self._take(self.inbox.get(timeout=max(0.0, next_tick - self.clock())))
            if self.clock() >= next_tick:
                next_tick = self.clock() + TICK
                self._tick()

    @property
    def _settled(self) -> bool:
        """Whether all is said, and nothing is wished for: a finished run can go back too."""
        staged = self.staging is None or self.staging.settled
        return self.board.settled and staged and not self.request.open

    def _tick(self) -> None:
        for limit in (self.dropped, self.notes):
            limit.tick(self.clock())
        self.sweeper.tick(self.clock())
        self._look_for_space()
        self._look_for_wish()
        self._keep_name()
        self.board.refresh()
        self._handle(events.Tick())

    def _take(self, event: Any) -> None:
        match event:
            case Message():
                try:
                    self._message(event)
                except WireError as error:
                    text = f"message on {event.topic} dropped: {error}"
                    device = self.topics.device_of(event.topic)
                    self.dropped.say(logging.WARNING, device, text, self.clock())
                event.ack()
            case Connected():
                self.board.look()
                self._publish_presence()  # what the broker keeps comes before its echo
            case Delivered():
                self.board.delivered(event)
            case Lost():
                self.board.look()
                self.holder.lost()
                log.warning("connection to %s lost (%s)", self.session.address, event.reason)
            case Failed():
                raise TransportError(event.reason)

    def _message(self, message: Message) -> None:
        address = self.topics.parse(message.topic)
        if self.sweeper.cleared(address, message):
            return
        self.sweeper.check(address, message, self.clock())
        if address.kind == "coordinator claim":
            claim = decode(message.payload, Claim)
            if claim != self.asked:
                self._publish_presence(answers=claim.nonce)
        elif address.kind == "coordinator status":
            self._defend_name(message)
        elif address.kind == "state":
            self._state_came(message)
        elif address.kind == "status" and message.payload:
            status = decode(message.payload, Status)
            self._handle(events.StatusCame(address.device, status, message.retained))
        elif address.kind == "report":
            report = decode(message.payload, Report)
            self._handle(events.ReportCame(address.device, report))
        elif address.kind == "update":
            self._handle(events.UpdateChunkCame(address.device, address.version, message.payload))

    def _state_came(self, message: Message) -> None:
        try:
            state = decode(message.payload, State)
        except WireError:
            self.board.overwritten = True  # by garbage, or by nothing at all
            raise
        self.board.came(message.payload, state, message.retained)

    def _defend_name(self, message: Message) -> None:
        """Nobody who merely says so is believed to be the coordinator in our place."""
        presence = None
        with contextlib.suppress(WireError):
            presence = decode(message.payload, Presence)
        self.holder.hears(message.payload, presence, self.clock())
        if presence is None:
            return
        if presence.instance == self.instance and not message.retained:
            self.board.looked()
        if self._must_go(presence):
            raise RefusedError(f"{self._rivalry} (instance {presence.instance})")

    def _must_go(self, presence: Presence) -> bool:
        """Whether this proves that another process with our key runs, and it is we who leave.

        The nonce that it answers is of this process: no presence of old can do. Both sides decide
        alike: the smaller instance stays.
        """
        if self.key is None or self.asked is None or presence.answers != self.asked.nonce:
            return False
        other = presence.online and presence.instance < self.instance
        return other and self._vouched(presence)

    def _vouched(self, presence: Presence) -> bool:
        """Whether a presence is of our federation, and of our key if we have one."""
        ours = presence.federation == self.config.federation
        return ours and (self.key is None or signed_by(presence, (self.key.public_key(),)))

    @property
    def _rivalry(self) -> str:
        return f"another coordinator of federation '{self.config.federation}' runs"

    def _warn(self, text: str) -> None:
        """Log what others can cause at any time, at a bounded rate."""
        self.dropped.say(logging.WARNING, "", text, self.clock())

    def _keep_name(self) -> None:
        """Say again who we are, at a bounded rate, and ask a rival to prove that it is one."""
        if not self.holder.due(self.clock()):
            return
        self._publish_presence()
        if not self.holder.rival:
            return
        self._warn(f"{self._rivalry}, or poses as it ({self.holder.rival})")
        if self.key is not None:
            self.asked = new_claim()
            self.session.publish(f"{self.topics.coordinator}/claim", encode(self.asked))

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
            case events.Remember(number, version, asked, known):
                with self._unless_full():
                    self.store.remember(number, version, asked, known)
            case events.RoundOpened():
                self.opened.setdefault(command.round, self.clock())
                log.info("round %d: asking %s", command.round + 1, ", ".join(command.devices))
                self.board.put_state()
            case events.Invite() if self.rounds.full:
                pass  # that it is asked may not be on disk; it would be refused after a restart
            case events.Invite(device, _, version):
                task = TaskMessage(device, self.rounds.facts.run, version)
                self._tell(device, "task", task)
            case events.SendReply(device, reply):
                run = self.rounds.facts.run
                reason = plain(reply.reason)
                said = msgspec.structs.replace(reply, device=device, run=run, reason=reason)
                self._tell(device, "reply", said)
            case events.ExpectUpdate(device, report):
                with self._unless_full():
                    self.store.expect(device, report)
            case events.KeepUpdateChunk(device, version, offset, data):
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
            case events.Judge():
                self._worry(command.version, self.health.hear(command))
            case events.Merge():
                if self.rounds.phase == "merging":  # not if the run has just gone back
                    self._merge(command)
            case events.RunFinished():
                log.info("all %d rounds are done", self.config.rounds.count)
            case events.Note(text, device):
                self.notes.say(logging.INFO, device, text, self.clock())

    # Commands that take more than a line

    def _check(self, device: str, report: Report) -> None:
        verdict: events.Event | None = None
        with self._unless_full():
            current = self.versions.current(self.rounds.round)
            limit = self.rounds.limit(self.versions.norm)
            try:
                norm = self.merging.check(device, report, current, limit)
            except WireError as error:
                verdict = events.Bad(device, str(error), report.version)
            else:
                self.store.accept(device, report, self.rounds.round, norm)
                verdict = events.Stored(device, report, norm)
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
        merged: tuple[str, ...] = ()
        with self._unless_full():
            outcome = self._merged(command)
            merged = outcome.merged
            scalars = {device: dict(command.reports[device].scalars) for device in merged}
            seconds = self.clock() - self.opened.get(command.round, self.clock())
            versions.advance(command.round + 1, outcome.model, outcome.state, scalars, seconds)
            self.opened.clear()
            self.unmerged = None
        if self.unmerged is None:
            self._go_on(old, events.MergeDone(versions.progress.version, merged), command.reports)
            progress = versions.progress
            self._worry(progress.version, self.health.evaluate(progress.version, progress.accuracy))

    def _merged(self, command: events.Merge) -> MergeResult:
        """The next model; who has to be left out for it is refused, and goes into quarantine."""
        current = self.versions.current(self.rounds.round)
        outcome = self.merging.merge(command.reports, command.norms, command.devices, current)
        self.problem = ""
        if outcome.problem:
            self.problem = f"round {command.round + 1} is without effect: {outcome.problem}"
            log.error("%s", self.problem)
        for device, reason in outcome.refused.items():
            self._handle(events.Revoked(device, reason))
        return outcome

    def _go_on(
        self, old: str, event: events.MergeDone | events.RolledBack, reports: Mapping[str, Report]
    ) -> None:
        """From one version to the next."""
        commands = self.rounds.handle(event, self.clock())
        self._clean_up(reports)
        self.board.outdate(old)
        self.board.put_model()
        if self.rounds.phase != "open":
            self.board.put_state()
        for command in commands:
            self._do(command)
        self._roll_out(RoundsDone(self.versions.progress.rounds_done))

    # Back to a good version

    def _worry(self, version: str, why: str) -> None:
        """Say that a version is bad, and go back to the last good one where that is configured."""
        if not why:
            return
        good = self.health.last_good
        self.problem = f"version {version} is bad: {why}"
        log.error("%s; the last good one is %s", self.problem, good or "unknown")
        if self.config.robust.roll_back and good and version == self.versions.progress.version:
            try:
                self._go_back(good, why)
            except StoreError as error:
                log.error("the run cannot go back: %s", error)
        self.board.put_state()

    def _look_for_wish(self) -> None:
        """Do what an operator asked for with `fededge rollback`."""
        if not self.request.open or self.rounds.full or self.unmerged is not None:
            return
        try:
            wanted = self.request.read() or self.health.last_good
            if not wanted:
                raise StoreError("no version is known to be good; name one with --to")
            if self._go_back(wanted, "the operator asked for it"):
                self.request.fulfil()
        except StoreError as error:
            log.error("the run cannot go back: %s", error)
            self.request.refuse(str(error))

    def _go_back(self, version: str, why: str) -> bool:
        """Go on from an earlier version's model; what the open round has is given up.

        False if the disk is full: then nothing has happened.
        """
        old = self.versions.progress.version
        with self._unless_full():
            self.versions.go_back(version)
            log.warning("back to version %s: %s", version, why)
            event = events.RolledBack(self.versions.progress.version, why)
            self._go_on(old, event, dict(self.rounds.stored))
        return old != self.versions.progress.version

    def _clean_up(self, reports: Mapping[str, Report]) -> None:
        """Updates that are in a version, and models that are too old for any late one."""
        config = self.config
        for device, report in reports.items():
            self.store.discard(report.version, device)
        self._clear_spool(set())
        if config.keep_versions:
            stale = config.rounds.max_staleness + 1 if config.rounds.folds else 1
            self.store.prune(max(config.keep_versions, stale), also=self.health.good[-1:])

    def _clear_spool(self, needed: set[str]) -> None:
        """Keep what may still come to something: of this version, or of a late update."""
        late = self.rounds.recent.keys() if self.config.rounds.folds else set()
        self.store.clear_spool(keep={*needed, *late, self.rounds.version})

    # What the world is told

    def _tell(self, device: str, kind: str, message: TaskMessage | Reply) -> None:
        if self.key is not None:
            message = sign(message, self.key)
        self.session.publish(self.topics.device(device, kind), encode(message))

    def _publish_presence(self, answers: str = "") -> None:
        presence = self._presence(online=True, answers=answers)
        self.holder.says(presence.payload, self.clock())
        self.session.publish(presence.topic, presence.payload, retain=True)

    def _state(self) -> State:
        assert self.board.manifest is not None
        return describe(
            self.config,
            self.rounds,
            self.versions,
            self.board.manifest,
            self.staging,
            self.problem,
            self.clock(),
        )
