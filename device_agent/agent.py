"""The agent of one device: builds its parts, runs them until stopped, and closes them."""

from __future__ import annotations

import hashlib
import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fededge._internal.malloc import return_free_memory
from fededge.config import AgentConfig
from fededge.data.local import check_device_data, check_device_section
from fededge.errors import DataError
from fededge.hardware.gate import Gate
from fededge.service.commands import unwatched
from fededge.service.inbox import InboxLoop
from fededge.service.presence import Holder, claim_name, new_claim
from fededge.transport.session import Session, Will
from fededge.wire.chunks import Assembly
from fededge.wire.messages import Status, encode
from fededge.wire.topics import Topics
from fededge_agent.coordinator_watch import CoordinatorWatch
from fededge_agent.data_watch import DataWatch
from fededge_agent.egress import Egress
from fededge_agent.exports.export_requests import ModelExporter
from fededge_agent.exports.export_worker import ExportWorker
from fededge_agent.exports.exporter_process import ExporterProcess
from fededge_agent.gating import Gating, gate_of
from fededge_agent.machine.agent import AgentMachine
from fededge_agent.machine.caution import Caution
from fededge_agent.machine.download import IncomingModel
from fededge_agent.machine.events import Pending
from fededge_agent.requests import TurnTrainer
from fededge_agent.shell import AgentParts, AgentShell
from fededge_agent.status import StatusWriter
from fededge_agent.store import AgentStore, SavedTurn
from fededge_agent.store.file_names import LEDGER
from fededge_agent.trainer_process import TrainerProcess
from fededge_agent.trust import Trust
from fededge_agent.turn_runner import TurnRunner
from fededge_agent.worker import Worker

__all__ = ["Agent", "Surroundings"]

log = logging.getLogger("agent")

SESSION_KEPT = 24 * 3600
"""Seconds for which the broker keeps our session while we are away."""


@dataclass(frozen=True)
class Surroundings:
    """Everything outside the agent's own logic; tests and benchmarks replace parts of it.

    `progress` is called when the loop has made progress; it feeds the watchdog. `watch` sees each
    event before it is handled, and each command before it is carried out.
    """

    clock: Callable[[], float] = time.monotonic
    session: Callable[..., Any] = Session
    claim: Callable[..., None] = claim_name
    trainer: Callable[[AgentConfig, AgentStore], TurnTrainer] = TrainerProcess
    worker: Callable[[TurnRunner, ExportWorker, queue.SimpleQueue[Any]], Worker] = Worker
    exporter: Callable[[AgentConfig, AgentStore], ModelExporter] = ExporterProcess
    exports: Callable[[AgentConfig, ModelExporter, queue.SimpleQueue[Any]], ExportWorker] = (
        ExportWorker
    )
    gate: Callable[[AgentConfig], Gate] = gate_of
    progress: Callable[[], None] = lambda: None
    watch: Callable[[object], None] = unwatched


SURROUNDINGS = Surroundings()


class Agent:
    """One device's agent. The constructor only stores; `run` does."""

    def __init__(self, config: AgentConfig, around: Surroundings = SURROUNDINGS) -> None:
        self.config = config
        self.around = around
        self.topics = Topics(config.federation)
        self.loop = InboxLoop(around.clock, around.progress)
        self.store = AgentStore(Path(config.state))
        self.runner = TurnRunner(config, self.store, around.trainer(config, self.store))
        self.exports = around.exports(config, around.exporter(config, self.store), self.loop.inbox)
        self.worker = around.worker(self.runner, self.exports, self.loop.inbox)
        self.trust = Trust(config, self.store)
        self.gating = Gating(around.gate(config))

    def stop(self) -> None:
        """Ask `run` to return; safe from a signal handler."""
        self.loop.stop()

    def run(self) -> None:
        """Take part in the federation until stopped."""
        return_free_memory()
        self._check_data()
        self.gating.check()
        self.store.open()
        try:
            self.runner.start(resting=bool(self.gating.begin()))
            self._run(self.connect())
        finally:
            self.close()

    def _check_data(self) -> None:
        """Read the data now, while a person sees the error. Missing data may come later."""
        check_device_section(self.config.data)
        try:
            check_device_data(self.config.data)
        except DataError as error:
            text = "%s; the agent stays up, and looks again when that changes"
            log.error(text, error, extra={"event": "data-unfit"})

    def _run(self, shell: AgentShell) -> None:
        self.worker.start()
        self.exports.start()
        try:
            self.loop.run(shell)
        finally:
            self.worker.stop()
            self.exports.stop()
            shell.stop()

    def open(self) -> AgentShell:
        """Open the store and connect; `run` starts the trainer as well."""
        self.store.open()
        return self.connect()

    def connect(self) -> AgentShell:
        """Claim our name and connect."""
        self.trust.open()
        shell = self._shell()
        self._claim(shell)
        self._subscribe(shell.session)
        shell.session.start()
        return shell

    def close(self) -> None:
        self.runner.stop()
        self.store.close()

    def _shell(self) -> AgentShell:
        config, index = self.config, self.store.index
        machine, holder = self._machine(), Holder(_public(index.instance))
        statuses = StatusWriter(
            config.device, machine, self.runner, self.exports.promotion, self.trust, holder
        )
        session = self._session(statuses.offline())
        ledger = Path(config.state) / LEDGER
        egress = Egress(session, self.topics, config.device, ledger, self.store)
        egress.open(begun=index.last_accepted is not None or index.count > 1)
        self.runner.foresee = egress.foreseen
        return AgentShell(
            AgentParts(
                topics=self.topics,
                device=config.device,
                store=self.store,
                trust=self.trust,
                runner=self.runner,
                worker=self.worker,
                exports=self.exports,
                gating=self.gating,
                data=DataWatch(config.data.root, self.around.clock),
                coordinator=CoordinatorWatch(self.topics, session, self.around.clock),
                machine=machine,
                caution=Caution(index.run),
                session=session,
                egress=egress,
                holder=holder,
                statuses=statuses,
                clock=self.around.clock,
                watch=self.around.watch,
            )
        )

    def _machine(self) -> AgentMachine:
        index, fresh = self.store.index, self.trust.fresh
        return AgentMachine(
            held="" if fresh else index.held,  # it came before we trusted a key
            pending=_pending(index.turn),
            last_accepted=_pending(index.last_accepted),
            missed=_pending(index.missed),
            incoming=None if fresh else self._incoming(),
            resting=self.gating.begin(),
        )

    def _incoming(self) -> IncomingModel | None:
        """The model that an earlier process was downloading."""
        coming = self.store.coming()
        if coming is None:
            return None
        version, manifest, have = coming
        return IncomingModel(version, Assembly(manifest, self.around.clock(), have=set(have)))

    def _session(self, offline: Status) -> Session:
        config = self.config
        # The instance is secret: whoever knew our client id could disconnect us.
        name = f"fededge-{config.federation}-{config.device}-{self.store.index.instance[:16]}"
        will = Will(self.topics.device(config.device, "status"), encode(offline))
        made: Session = self.around.session(
            config.broker, name, self.loop.inbox, will, SESSION_KEPT
        )
        return made

    def _claim(self, shell: AgentShell) -> None:
        config, claim = self.config, new_claim()
        shell.parts.egress.claimed(claim)
        what = f"device '{config.device}' of federation '{config.federation}'"
        base = self.topics.device(config.device)
        self.around.claim(config.broker, base, claim, shell.holder.instance, what, Status)

    def _subscribe(self, session: Session) -> None:
        session.subscribe(self.topics.state, f"{self.topics.coordinator}/status")
        for kind in ("task", "reply", "claim", "status"):
            session.subscribe(self.topics.device(self.config.device, kind))


def _pending(turn: SavedTurn | None) -> Pending | None:
    return None if turn is None else Pending(turn.report.run, turn.report.version)


def _public(secret: str) -> str:
    """The instance that we publish: the secret itself is part of our client id."""
    return hashlib.sha256(f"fededge instance {secret}".encode()).hexdigest()[:32]
