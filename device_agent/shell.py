"""The agent's shell: carries the commands of its machine out, over MQTT, on disk, in the worker."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fededge.errors import DiskFullError, EgressError, WireError
from fededge.service.commands import unwatched
from fededge.service.log_lines import LogLines
from fededge.service.presence import Holder
from fededge.service.shell import ServiceShell
from fededge.transport.session import Connected, Incoming, Session
from fededge.wire.chunks import Payload
from fededge.wire.messages import Claim, Presence, Reply, Report, State, Status, TaskMessage, decode
from fededge.wire.topics import Topics, federation_of
from fededge_agent.coordinator_watch import CoordinatorWatch
from fededge_agent.data_watch import DataWatch
from fededge_agent.egress import Egress, reduced
from fededge_agent.exports.export_worker import ExportWorker, StatusChanged
from fededge_agent.gating import Gating
from fededge_agent.machine import commands, events
from fededge_agent.machine.agent import AgentMachine
from fededge_agent.machine.caution import Caution
from fededge_agent.status import StatusWriter, one_line
from fededge_agent.store import AgentStore
from fededge_agent.trust import Trust
from fededge_agent.turn_runner import TurnRunner
from fededge_agent.worker import Worker, WorkerFailed

__all__ = ["AgentParts", "AgentShell"]

log = logging.getLogger("agent")

PROGRESS = 10.0  # seconds between two statuses of a training that advances
SIGNS_OF_LIFE = 3
"""Statuses that a device sends within its lease: two may be lost or late."""


@dataclass(frozen=True)
class AgentParts:
    """The parts of the shell, all open or ready to start."""

    topics: Topics
    device: str
    store: AgentStore
    trust: Trust
    runner: TurnRunner
    worker: Worker
    exports: ExportWorker
    gating: Gating
    data: DataWatch
    coordinator: CoordinatorWatch
    machine: AgentMachine
    caution: Caution
    session: Session
    egress: Egress
    holder: Holder
    statuses: StatusWriter
    clock: Callable[[], float]
    watch: Callable[[object], None] = unwatched


class AgentShell(ServiceShell[events.Event, commands.Command, Status]):
    """One device's agent while it is connected."""

    def __init__(self, parts: AgentParts) -> None:
        super().__init__(
            machine=parts.machine,
            session=parts.session,
            holder=parts.holder,
            presence=Status,
            lines=LogLines(log, parts.clock, devices=1),
            clock=parts.clock,
            watch=parts.watch,
        )
        self.parts = parts
        self._unsaved: State | None = None
        self._announced = -math.inf

    def stop(self) -> None:
        """Leave the offline status behind, and disconnect."""
        self.session.stop(self.parts.egress.last_words(self.parts.statuses.offline()))

    # The clock

    def on_tick(self) -> None:
        if self._unsaved is not None:
            self._believe(self._unsaved)
        stood = self.parts.caution.tick(self.clock())
        if stood is not None:
            self._go_by(stood)
        changed = self.parts.gating.look(self.parts.worker.busy)
        if changed is not None:
            self.handle(changed)
        if self.parts.data.changed(self.parts.machine.view.cause):
            self.handle(events.CauseGone())
        if self.connected and self.parts.coordinator.tick():
            self._remark(self.parts.coordinator.remark)
        # Neither an app's report nor a sign of life waits for a training.
        if self.parts.exports.promotion.look() or self._lease_runs_out:
            self.announce()

    @property
    def _lease_runs_out(self) -> bool:
        """True if a sign of life is due; while the link is down they would only pile up."""
        lease = self.parts.machine.view.lease
        if lease is None or not self.connected:
            return False
        advanced = self.parts.statuses.advanced
        due = min(lease / SIGNS_OF_LIFE, PROGRESS) if advanced else lease / SIGNS_OF_LIFE
        return self.clock() - self._announced >= due

    def announce(self) -> None:
        self.do(commands.Announce())

    @property
    def rivalry(self) -> str:
        return self.parts.statuses.rivalry

    # Events

    def on_connected(self, event: Connected) -> None:
        self.parts.coordinator.connected()
        self.parts.statuses.remark = self.parts.coordinator.remark
        self.handle(events.LinkUp(event.resumed))

    def on_denied(self, reason: str) -> None:
        super().on_denied(reason)
        self._remark(one_line(reason))

    def _remark(self, text: str) -> None:
        if self.parts.statuses.remark != text:
            self.parts.statuses.remark = text
            self.announce()

    def on_event(self, event: Any) -> None:
        match event:
            case WorkerFailed():
                raise event.error
            case StatusChanged():
                self.announce()
            case _:
                self.handle(event)

    def on_message(self, message: Incoming) -> None:
        self.parts.coordinator.hears(message.topic)
        if federation_of(message.topic) not in ("", self.parts.topics.federation):
            return
        address = self.parts.topics.parse(message.topic)
        payload = message.payload
        if address.kind == "state" and payload:
            self._believe(self.parts.coordinator.read(payload))
        elif address.kind == "task":
            task = decode(payload, TaskMessage)
            self._check_sender(task)
            self.handle(events.TaskCame(task))
        elif address.kind == "reply":
            reply = decode(payload, Reply)
            self._check_sender(reply)
            self.handle(events.ReplyCame(reply))
        elif address.kind == "claim":
            self.handle(events.ClaimCame(decode(payload, Claim).nonce))
        elif address.kind == "coordinator status" and payload:
            self._hear_coordinator(decode(payload, Presence))
        elif address.kind == "status":
            self.hear_name(payload)
        elif address.kind == "model" and payload:
            self.handle(events.ModelChunkCame(address.version, payload))

    def _hear_coordinator(self, presence: Presence) -> None:
        self.parts.trust.vouch(presence)
        self.parts.coordinator.presence_came(presence)

    def _check_sender(self, message: TaskMessage | Reply) -> None:
        """Refuse a message for another device: anybody may have copied it to our topic."""
        if message.device != self.parts.device:
            raise WireError(f"it is for device '{message.device}'")
        self.parts.trust.vouch(message)

    def _believe(self, state: State) -> None:
        """Go by a trusted state; if it is not trusted, the status says why."""
        trust = self.parts.trust
        before, self._unsaved = trust.problem, None
        try:
            trust.check(state)
            if trust.key or self.parts.caution.weigh(state, self.clock()):
                self._go_by(state)
            else:
                self.lines.warn(
                    f"run '{state.run}' has other terms: it is believed if nobody contradicts it"
                )
        except DiskFullError:
            self._unsaved = state  # tried again at every tick
            if trust.problem != before:
                log.error("%s", trust.problem, extra={"event": "state-refused"})
        finally:
            if trust.problem != before:
                self.announce()

    def _go_by(self, state: State) -> None:
        self.parts.coordinator.state_came()
        if self.parts.statuses.remark:
            self._remark("")
        self._follow_rollout(state)
        self.handle(events.StateCame(state))

    def _follow_rollout(self, state: State) -> None:
        """Withdraw models at once; the worker evaluates released ones before they take over."""
        if self.parts.exports.promotion.follow(state):
            self.announce()
        if state.rollout is not None:
            self.parts.worker.release()

    # Commands

    def carry_out(self, command: commands.Command) -> None:
        parts = self.parts
        match command:
            case commands.Announce(answers):
                self._announced = self.clock()
                said = parts.egress.status(parts.statuses.online(answers))
                self.holder.says(said, self.clock())
            case commands.Prepare(state):
                parts.data.begin()
                parts.worker.prepare(state)
            case commands.ExpectModel(version, manifest):
                parts.worker.warm_up()
                parts.store.expect(version, manifest)
            case commands.Follow(version, chunks):
                self.session.subscribe(*self._chunk_topics(version, chunks), lasting=False)
            case commands.Unfollow(version, chunks):
                self.session.unsubscribe(*self._chunk_topics(version, chunks))
            case commands.KeepModelChunk(version, offset, data, checksum):
                parts.store.keep(version, offset, data, checksum)
            case commands.CheckModel():
                self._check_model(command)
            case commands.Train(state):
                parts.worker.train(state)
            case commands.Abandon():
                parts.worker.abandon()
            case commands.SendUpdate():
                self._send(command)
            case commands.Settle():
                self._settle(command)
            case commands.Note(text):
                self.lines.note(text)

    def on_full(self, command: commands.Command, error: DiskFullError) -> None:
        """A full disk ends nothing: the coordinator asks again later."""
        reason = one_line(str(error))
        match command:
            case commands.Settle():
                self.handle(events.Unsettled(reason))
            case commands.SendUpdate():
                self.handle(events.Unsent(reason))
            case _:
                self.handle(events.DownloadFailed(reason))

    def _chunk_topics(self, version: str, chunks: Iterable[int]) -> list[str]:
        return [self.parts.topics.model(version, index) for index in chunks]

    def _check_model(self, command: commands.CheckModel) -> None:
        try:
            self.parts.runner.check_model(command.version, command.manifest)
        except WireError as error:
            self.handle(events.Spoiled(command.version, str(error)))
        else:
            self.handle(events.Fetched(command.version))

    def _settle(self, decision: commands.Settle) -> None:
        """Save the decision; the machine begins nothing else before it is on disk."""
        self.parts.egress.drop()
        self.parts.store.settle(decision.accepted, decision.late)
        log.info("update %s", "accepted" if decision.accepted else "dropped")
        self.handle(events.Settled(decision))

    def _send(self, command: commands.SendUpdate) -> None:
        turn = self.parts.store.outgoing
        if turn is None:
            return
        attached = command.attached and turn.report.manifest.chunks == 1
        if not command.chunks and not attached:
            self._report(turn.report)
        elif (payload := self.parts.store.update(command.chunks)) is None:
            self.handle(events.TurnLost())
        elif attached:
            self._report(turn.report, payload)
        else:
            self.parts.egress.chunks(turn.report, payload, command.chunks)

    def _report(self, report: Report, payload: Payload | None = None) -> None:
        allowed = self.parts.runner.scalars
        try:
            self.parts.egress.report(reduced(report, allowed), allowed, payload)
        except EgressError as error:
            self.lines.warn(f"the update is not reported: {error}")
