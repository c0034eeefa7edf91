"""Carries out the commands of the coordinator's state machines: on disk, and over MQTT.

A command may raise DiskFullError: then nothing of it has happened, or nothing that counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from fededge._internal.plain_text import plain
from fededge.config import CoordinatorConfig
from fededge.errors import WireError
from fededge.service.log_lines import LogLines
from fededge.transport.session import Session
from fededge.wire.messages import Reply, Report, TaskMessage, encode
from fededge_server.identity import Identity
from fededge_server.machine import events, rollout
from fededge_server.machine.round_state import RoundsView
from fededge_server.machine.rounds import Rounds
from fededge_server.merging import Merging
from fededge_server.publisher import Publisher
from fededge_server.state_message import StateMessage
from fededge_server.store import Store
from fededge_server.version_judge import VersionJudge
from fededge_server.versions import Versions

__all__ = ["CommandExecutor"]

log = logging.getLogger("coordinator")

Event = events.Event | rollout.Event
Command = events.Command | rollout.Command


@dataclass
class CommandExecutor:
    """`opened` says when each round was opened, to tell how long it took."""

    config: CoordinatorConfig
    identity: Identity
    session: Session
    store: Store
    versions: Versions
    rounds: Rounds
    merging: Merging
    judge: VersionJudge
    publisher: Publisher
    message: StateMessage
    clock: Callable[[], float]
    lines: LogLines
    opened: dict[int, float] = field(default_factory=dict)

    @property
    def view(self) -> RoundsView:
        return self.rounds.view(self.clock())

    def do(self, command: Command) -> list[Event]:
        """Carry a command out; the events that come of it, to be handled after its batch."""
        match command:
            case events.Check(device, report):
                return [self._check(device, report)]
            case events.Judge():
                return self.judge.hear(command)
            case events.Evaluate(version):
                return self.judge.evaluate(version)
            case events.Merge():
                return self._merge(command)
            case rollout.Planned(plan):
                self.store.keep_plan(plan)
                return [rollout.PlanKept(plan)]
            case events.Invite() | events.SendReply() | events.RoundOpened():
                self._tell(command)
            case events.Note(text, device):
                self.lines.note(text, device)
            case events.RunFinished():
                log.info("all %d rounds are done", self.config.rounds.count)
            case events.PublishState():
                self.publisher.put_state()
            case events.Retire():
                self._retire(command)
            case _:
                self._write(command)
        return []

    # On disk

    def _write(self, command: Command) -> None:
        match command:
            case events.Remember(number, version, asked, known):
                self.store.remember(number, version, asked, known)
            case events.ExpectUpdate(device, report):
                self.store.expect(device, report)
            case events.KeepUpdateChunk(device, version, offset, data):
                self.store.keep(version, device, offset, data)
            case events.Discard(device, version):
                self.store.discard(version, device)
            case events.Refuse():
                self.store.refuse(self.view.round, command)

    def _check(self, device: str, report: Report) -> Event:
        number = self.view.round
        current, limit = self.versions.current(number), self.rounds.limit(self.versions.norm)
        try:
            norm = self.merging.check(device, report, current, limit)
        except WireError as error:
            return events.Bad(device, str(error), report.version)
        self.store.accept(device, report, number, norm)
        return events.Stored(device, report, norm)

    def _merge(self, command: events.Merge) -> list[Event]:
        """Make the next version. Refusals are written first: a restart must not merge them."""
        current, reports = self.versions.current(command.round), command.reports
        result = self.merging.merge(reports, command.norms, command.devices, current)
        self.message.problem = ""
        if result.problem:
            self.message.problem = f"round {command.round + 1} is without effect: {result.problem}"
            log.error("%s", self.message.problem)
        for device, reason in result.refused.items():
            refused = events.Refuse(device, reports[device].version, reason, quarantined=True)
            self.store.refuse(command.round, refused)
        scalars = {device: dict(reports[device].scalars) for device in result.merged}
        seconds = self.clock() - self.opened.get(command.round, self.clock())
        self.versions.advance(command.round + 1, result.model, result.state, scalars, seconds)
        self.opened.clear()
        progress = self.versions.progress
        done = events.MergeDone(progress.version, result.merged, result.refused)
        return [done, rollout.RoundsDone(progress.rounds_done)]

    def _retire(self, command: events.Retire) -> None:
        """Remove what only the version before needed, and publish the model of the new one."""
        config = self.config
        self.store.clear_spool(keep=command.keep)
        if config.keep_versions:
            stale = config.rounds.max_staleness + 1 if config.rounds.folds else 1
            kept = max(config.keep_versions, stale)
            self.store.prune(kept, also=[*filter(None, [self.judge.health.last_good])])
        self.publisher.outdate(command.version)
        self.publisher.put_model()

    # Over MQTT

    def _tell(self, command: events.Invite | events.SendReply | events.RoundOpened) -> None:
        run = self.versions.run
        match command:
            case events.RoundOpened(number, devices):
                self.opened.setdefault(number, self.clock())
                log.info("round %d: asking %s", number + 1, ", ".join(devices))
                self.publisher.put_state()
            case events.Invite(device, _, version):
                task = TaskMessage(device, run, version)
                self._send(device, "task", self.identity.signed(task))
            case events.SendReply(device, reply):
                reason = plain(reply.reason)
                said = msgspec.structs.replace(reply, device=device, run=run, reason=reason)
                self._send(device, "reply", self.identity.signed(said))

    def _send(self, device: str, kind: str, message: TaskMessage | Reply) -> None:
        topic = self.identity.topics.device(device, kind)
        self.session.publish(topic, encode(message))
