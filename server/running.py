"""A coordinator that runs: one thread takes what comes, asks the machines, and does what they say.

Commands are queued and never run inside one another. Events that come of a command are handled
once its batch is done. A command that finds the disk full ends its batch: what follows it builds on
something that is not on disk. The machine hears of it with `Full`, and asks for all that the round
still needs when there is space.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fededge.errors import DiskFullError, TransportError, WireError
from fededge.service.log_lines import LogLines
from fededge.transport.session import Connected, Delivered, Failed, Incoming, Lost, Session
from fededge.wire.messages import Claim, Report, Status, decode
from fededge.wire.topics import Address
from fededge_server.executor import Command, CommandExecutor, Event
from fededge_server.identity import Identity
from fededge_server.machine import events, rollout
from fededge_server.machine.round_state import RoundsView
from fededge_server.machine.rounds import Rounds
from fededge_server.name_keeper import NameKeeper
from fededge_server.publisher import Publisher
from fededge_server.store import Progress, Store
from fededge_server.sweeper import Sweeper
from fededge_server.version_judge import VersionJudge
from fededge_server.versions import Versions

__all__ = ["RunningCoordinator"]

log = logging.getLogger("coordinator")

SPARE_UPDATES = 4
"""A disk that was full takes updates again when so many fit."""


@dataclass
class RunningCoordinator:
    """Built whole by `Coordinator.start`.

    `observe` hears every command before it is carried out. `lines` are log lines that the network
    can cause, at a bounded rate.
    """

    identity: Identity
    session: Session
    store: Store
    versions: Versions
    rounds: Rounds
    staging: rollout.Staging | None
    executor: CommandExecutor
    judge: VersionJudge
    publisher: Publisher
    name: NameKeeper
    sweeper: Sweeper
    clock: Callable[[], float]
    lines: LogLines
    observe: Callable[[Command], None]
    waiting: deque[Event] = field(default_factory=deque)

    @property
    def view(self) -> RoundsView:
        return self.rounds.view(self.clock())

    @property
    def progress(self) -> Progress:
        return self.versions.progress

    @property
    def rounds_done(self) -> bool:
        """True once all rounds of the run are done."""
        return self.view.phase == "done"

    @property
    def done(self) -> bool:
        """True once all is done and said: a finished run can still be asked to go back."""
        staged = self.staging is None or self.staging.idle
        requested = self.judge.request.open
        return self.rounds_done and self.publisher.idle and staged and not requested

    def stop(self) -> None:
        """Leave the broker, with a last word."""
        self.session.stop(self.identity.presence(online=False))

    # What comes

    def take(self, event: Any) -> None:
        """Take an event of the session."""
        match event:
            case Incoming():
                self._take_message(event)
                event.ack()
            case Connected():
                self.publisher.look()
                self.name.announce()  # its echo follows everything that the broker retains
            case Delivered():
                self.publisher.delivered(event)
            case Lost():
                self.publisher.look()
                self.name.connection_lost()
                log.warning("connection to %s lost (%s)", self.session.address, event.reason)
            case Failed():
                raise TransportError(event.reason)

    def tick(self) -> None:
        """Do what is due by the clock."""
        self.lines.tick()
        self.sweeper.tick(self.clock())
        self._look_for_space()
        if not self.view.full:
            self._attempt(self.judge.requested)
            self._work()
        self.name.tick()
        self.publisher.refresh()
        self.handle(events.Tick())

    def _take_message(self, message: Incoming) -> None:
        try:
            address = self.identity.topics.parse(message.topic)
            if not self.sweeper.cleared(address, message):
                self.sweeper.check(address, message, self.clock())
                self._dispatch(address, message)
        except WireError as error:
            device = self.identity.topics.device_of(message.topic)
            self.lines.drop(message.topic, device, error)

    def _dispatch(self, address: Address, message: Incoming) -> None:
        device, payload = address.device, message.payload
        match address.kind:
            case "coordinator claim":
                self.name.answer(decode(payload, Claim))
            case "coordinator status":
                if self.name.hear(message):
                    self.publisher.begin()
            case "state":
                self.publisher.came(payload, message.retained)
            case "status" if payload:
                status = decode(payload, Status)
                self.handle(events.StatusCame(device, status, message.retained))
            case "report":
                self.handle(events.ReportCame(device, decode(payload, Report)))
            case "update":
                self.handle(events.UpdateChunkCame(device, address.version, payload))

    def _look_for_space(self) -> None:
        if not self.view.full:
            return
        if self.store.free_bytes > SPARE_UPDATES * self.versions.update_limit:
            self.handle(events.Full(False))

    # What is done

    def handle(self, event: Event) -> None:
        """Handle an event, and all that it leads to."""
        self.waiting.append(event)
        self._work()

    def _work(self) -> None:
        while self.waiting:
            event = self.waiting.popleft()
            if isinstance(event, rollout.Event):
                self._work_off(self._staged(event))
            if isinstance(event, events.Event):
                self._work_off(self.rounds.handle(event, self.clock()))

    def _staged(self, event: rollout.Event) -> Sequence[Command]:
        """The rollout's commands; while the disk is full, time alone leads to none."""
        if self.staging is None or (self.view.full and isinstance(event, events.Tick)):
            return []
        return self.staging.handle(event, self.clock())

    def _work_off(self, batch: Sequence[Command]) -> None:
        """Carry out the commands of a batch, to its end or to the first that ends it."""
        for command in batch:
            self.observe(command)
            if not self._attempt(functools.partial(self.executor.do, command)):
                return

    def _attempt(self, action: Callable[[], Sequence[Event]]) -> bool:
        """Do something, and queue the events that come of it. False if its batch ends here.

        It does if the disk is full, or if the run went back: the rest is of a round given up.
        """
        try:
            found = action()
        except DiskFullError as error:
            log.error("%s", error)
            found = [events.Full(True)]
        self.waiting.extend(found)
        return not any(isinstance(event, events.Full | events.RolledBack) for event in found)
