"""Carries out the commands of the coordinator's state machines: on disk, and over MQTT.

A command may raise DiskFullError: then nothing of it has happened, or nothing that counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fededge._internal.plain_text import plain
from fededge.broker.dynamic_security import CONTROL, admission, denial
from fededge.errors import ConfigError, RefusedError, StoreError, WireError
from fededge.wire.messages import Reply, TaskMessage, encode
from fededge_server.machine import coordinator, events
from fededge_server.machine.fleet import orders
from fededge_server.machine.rounds import rollout
from fededge_server.machine.rounds.new_settings import TakeEffect
from fededge_server.new_settings import check_ordered, take_effect
from fededge_server.parts import CoordinatorParts
from fededge_server.store import AWAKE, CheckedUpdate, score_of

__all__ = ["Command", "CommandExecutor", "CommitGroup", "FulfilRequest", "GiveOrder"]

log = logging.getLogger("coordinator")

MOST_NAMED = 20
"""Devices that a line of the log names."""


@dataclass(frozen=True)
class FulfilRequest:
    """A command of the shell's own: do what an operator asked for with `fededge rollback`."""


@dataclass(frozen=True)
class CommitGroup:
    """A command of the shell's own: make all checked updates durable, and answer with Stored."""


@dataclass(frozen=True)
class GiveOrder:
    """A command of the shell's own: write an operator's order down, and carry it out.

    `answer` hears of the outcome, or of the error.
    """

    order: Any
    answer: Callable[[orders.Outcome | Exception], None]


Event = coordinator.Event
Command = coordinator.Command | FulfilRequest | CommitGroup | GiveOrder

Told = (
    events.Invite | events.SendReply | events.RoundOpened | orders.ClearStatus | orders.ControlUser
)
"""Commands that are messages."""

GROUPED = (
    events.Check
    | events.ExpectUpdate
    | events.KeepUpdateChunk
    | events.Invite
    | events.SendReply
    | events.Note
    | CommitGroup
)
"""Commands that change nothing which an update of the group relies on; others commit it first."""


class CommandExecutor:
    """`opened` says when each round was opened, to tell how long it took.

    Group commit: updates that passed their checks wait in `group`, until one sync and one entry
    of the journal make all of them durable.
    """

    def __init__(self, parts: CoordinatorParts) -> None:
        self.parts = parts
        self.opened: dict[int, float] = {}
        self.group: list[CheckedUpdate] = []

    def do(self, command: Command) -> Sequence[Event]:
        """Carry a command out; the events that come of it, to be handled after its batch."""
        parts = self.parts
        match command:
            case events.Check():
                return self._check(command)
            case events.Judge():
                return parts.judge.hear(command)
            case events.Evaluate(version):
                return parts.judge.evaluate(version)
            case FulfilRequest():
                return parts.judge.requested()
            case CommitGroup():
                return self.commit()
            case GiveOrder():
                return self._give(command)
            case events.Merge():
                return self._merge(command)
            case events.Refuse():
                return [self._refuse(command, parts.view.round)]
            case rollout.Planned(plan):
                parts.store.keep_plan(plan)
                return [rollout.PlanKept(plan)]
            case events.Invite() | events.SendReply() | events.RoundOpened():
                self._tell(command)
            case orders.ClearStatus() | orders.ControlUser():
                self._tell(command)
            case events.Note() | events.SetAside() | events.RunFinished():
                self._log(command)
            case events.PublishState():
                parts.publisher.put_state()
            case events.Retire():
                self._retire(command)
            case _:
                return self._write(command)
        return []

    def _log(self, command: events.Note | events.SetAside | events.RunFinished) -> None:
        parts = self.parts
        match command:
            case events.Note(text, device):
                parts.lines.note(text, device)
            case events.SetAside(device, move):
                text = f"an event was dropped (bug: {move}); the round goes on without the device"
                parts.lines.warn(text, device)
            case events.RunFinished():
                log.info("all %d rounds are done", parts.view.round)

    def _give(self, command: GiveOrder) -> list[Event]:
        """Make an order durable; it takes effect with the event that comes of it."""
        parts = self.parts
        try:
            if isinstance(command.order, orders.ApplyOrder):
                check_ordered(parts, command.order.settings)
            outcome = parts.store.order(command.order, parts.wall(), parts.rounds.participants)
        except (RefusedError, ConfigError) as error:
            command.answer(error)
            return []
        except StoreError as error:
            command.answer(error)
            raise
        command.answer(outcome)
        order = command.order
        if isinstance(order, orders.ReleaseOrder) and not outcome.changed:
            # The broker may deny a device that the journal does not: a backup was restored.
            self._tell(orders.ControlUser(order.device, denied=False))
        return [orders.OrderGiven(command.order)] if outcome.changed else []

    # On disk

    def _write(self, command: Command) -> list[Event]:
        store = self.parts.store
        match command:
            case events.Remember(number, version, asked, known):
                store.remember(number, version, asked, known)
                return [events.Remembered(version, asked, known)]
            case events.Woke(number):
                store.note(AWAKE, str(number))
            case events.ExpectUpdate(device, report):
                store.expect(device, report)
            case events.KeepUpdateChunk(device, version, offset, data, checksum):
                store.keep(version, device, offset, data, checksum)
            case events.Discard(device, version):
                store.discard(version, device)
            case TakeEffect():
                return [*take_effect(self.parts)]
        return []

    def _check(self, command: events.Check) -> list[Event]:
        """Put an update that passes its check into the group; Bad if it does not."""
        device, report = command.device, command.report
        parts, versions = self.parts, self.parts.versions
        number = parts.view.round
        current, limit = versions.current(number), parts.rounds.limit(versions.norm)
        try:
            norm = parts.merging.check(device, report, current, limit, command.data)
        except WireError as error:
            return [events.Bad(device, str(error), report.version)]
        if command.data:
            parts.store.keep_whole(report.version, device, command.data)
        self.group.append(CheckedUpdate(device, report, number, norm))
        return []

    def commit_before(self, command: Command) -> list[Event]:
        """Take the group, if this command must not run while it is open."""
        return [] if isinstance(command, GROUPED) else self.commit()

    def commit(self) -> list[Event]:
        """Take the group. If the disk is full, nothing of it counts: the rounds ask again."""
        group, self.group = self.group, []
        if group:
            self.parts.store.accept(*group)
        return [events.Stored(one.device, one.report, one.norm) for one in group]

    def _refuse(self, command: events.Refuse, number: int) -> Event:
        self.parts.store.refuse(number, command)
        return events.RefusalWritten(command.device, command.version)

    def _merge(self, command: events.Merge) -> list[Event]:
        """Make the next version. Refusals are written first: a restart must not merge them."""
        parts, versions = self.parts, self.parts.versions
        current, reports = versions.current(command.round), command.reports
        result = parts.merging.merge(reports, command.norms, command.devices, current)
        parts.message.problem = ""
        if result.problem:
            parts.message.problem = f"round {command.round + 1} is without effect: {result.problem}"
            log.error("%s", parts.message.problem, extra={"event": "merge-failed"})
        written: list[Event] = []
        for device, reason in result.refused.items():
            refused = events.Refuse(device, reports[device].version, reason, quarantined=True)
            written.append(self._refuse(refused, command.round))
        scalars = {device: dict(reports[device].scalars) for device in result.merged}
        seconds = parts.clock() - self.opened.get(command.round, parts.clock())
        versions.advance(command.round + 1, result.model, result.state, scalars, seconds)
        self.opened.clear()
        progress = versions.progress
        score = score_of(progress.accuracy, scalars)
        done = events.MergeDone(progress.version, result.merged, result.refused, score)
        return [done, *written, rollout.RoundsDone(progress.rounds_done)]

    def _retire(self, command: events.Retire) -> None:
        """Remove what only the version before needed, and publish the model of the new one."""
        parts, config = self.parts, self.parts.config
        parts.store.clear_spool(keep=command.keep)
        if config.keep_versions:
            stale = config.rounds.max_staleness + 1 if config.rounds.folds else 1
            kept = max(config.keep_versions, stale)
            parts.store.prune(kept, also=[*filter(None, [parts.judge.health.last_good])])
        parts.publisher.outdate(command.version)
        parts.publisher.put_model()

    # Over MQTT

    def _tell(self, command: Told) -> None:
        parts, run = self.parts, self.parts.versions.run
        match command:
            case events.RoundOpened(number, devices):
                self.opened.setdefault(number, parts.clock())
                log.info("round %d: asking %s", number + 1, _listed(devices))
                parts.publisher.put_state()
            case orders.ControlUser(device, denied):
                message = denial(device) if denied else admission(device)
                parts.session.publish(CONTROL, message)
            case orders.ClearStatus(device):
                topic = parts.identity.topics.device(device, "status")
                parts.session.publish(topic, b"", retain=True)
            case events.Invite(device, _, version):
                task = TaskMessage(device, run, version)
                self._send(device, "task", parts.identity.signed(task))
            case events.SendReply(device, reply):
                reason = plain(reply.reason)
                said = msgspec.structs.replace(reply, device=device, run=run, reason=reason)
                self._send(device, "reply", parts.identity.signed(said))

    def _send(self, device: str, kind: str, message: TaskMessage | Reply) -> None:
        topic = self.parts.identity.topics.device(device, kind)
        self.parts.session.publish(topic, encode(message))


def _listed(devices: Sequence[str]) -> str:
    """Some devices by name, for a line of the log; the others by number."""
    named = ", ".join(devices[:MOST_NAMED])
    others = len(devices) - MOST_NAMED
    return f"{named} and {others} others" if others > 0 else named
