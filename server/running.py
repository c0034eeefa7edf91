"""A coordinator that runs: its shell between MQTT, the disk, and its state machines."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from fededge.errors import DiskFullError, RefusedError
from fededge.service.presence import Holder
from fededge.service.shell import ServiceShell
from fededge.transport.session import Connected, Delivered, Incoming
from fededge.wire import reports
from fededge.wire.messages import Claim, Presence, Status, decode, encode
from fededge.wire.topics import Address
from fededge_server.api.requests import OrderRequest, ReadRequest, answer
from fededge_server.challenge import Challenge
from fededge_server.executor import Command, CommandExecutor, CommitGroup, FulfilRequest
from fededge_server.machine import events
from fededge_server.machine.coordinator import CoordinatorMachine, Event
from fededge_server.machine.fleet.orders import ControlUser
from fededge_server.machine.fleet.standings import Standing
from fededge_server.parts import CoordinatorParts
from fededge_server.store import Progress
from fededge_server.sweeper import Sweeper

__all__ = ["RunningCoordinator"]

log = logging.getLogger("coordinator")

SPARE_UPDATES = 4
"""A disk that was full takes updates again when so many fit."""


class RunningCoordinator(ServiceShell[Event, Command, Presence]):
    """One federation's coordinator while it is connected.

    `stays`: it is not done when its rounds are.
    """

    def __init__(self, parts: CoordinatorParts, stays: bool = False) -> None:
        super().__init__(
            machine=CoordinatorMachine(parts.rounds, parts.staging),
            session=parts.session,
            holder=Holder(parts.identity.instance),
            presence=Presence,
            lines=parts.lines,
            clock=parts.clock,
            watch=parts.watch,
        )
        self.parts = parts
        self.stays = stays
        self.executor = CommandExecutor(parts)
        self.challenge = Challenge(parts.identity)
        self.sweeper = Sweeper(parts.session, parts.identity.topics)
        self._unacknowledged: list[Incoming] = []

    @property
    def progress(self) -> Progress:
        return self.parts.versions.progress

    @property
    def rounds_done(self) -> bool:
        """True once all rounds of the run are done."""
        return self.parts.view.phase == "done"

    @property
    def done(self) -> bool:
        """True once all is done and said: a finished run can still be asked to go back."""
        parts = self.parts
        if self.stays:
            return False
        staged = parts.staging is None or parts.staging.idle
        settled = self.rounds_done and not parts.rounds.state.changing
        return settled and parts.publisher.idle and staged and not parts.judge.request.open

    def stop(self) -> None:
        """Leave the broker, with a last word."""
        self.session.stop(self.parts.identity.presence(online=False))

    # The clock

    def on_tick(self) -> None:
        self.sweeper.tick(self.clock())
        if self.parts.config.rounds.hours:
            self.handle(events.TimeOfDay(datetime.fromtimestamp(self.parts.wall())))
        self._look_for_space()
        if self.parts.judge.request.open and not self.parts.view.full:
            self.do(FulfilRequest())
        self.parts.publisher.refresh()
        self.parts.store.sync_marks()

    def _look_for_space(self) -> None:
        enough = SPARE_UPDATES * self.parts.versions.update_limit
        if self.parts.view.full and self.parts.store.free_bytes > enough:
            self.handle(events.Full(False))

    # The name

    def announce(self, answers: str = "") -> None:
        presence = self.parts.identity.presence(online=True, answers=answers)
        self.holder.says(presence.payload, self.clock())
        self.session.publish(presence.topic, presence.payload, retain=True)

    @property
    def rivalry(self) -> str:
        return f"{self._another_runs}, or poses as it ({self.holder.rival})"

    @property
    def _another_runs(self) -> str:
        return f"another coordinator of federation '{self.parts.identity.federation}' runs"

    def on_rival(self) -> None:
        claim = self.challenge.renew()
        if claim is not None:
            topic = f"{self.parts.identity.topics.coordinator}/claim"
            self.session.publish(topic, encode(claim))

    def _answer(self, claim: Claim) -> None:
        """Answer whoever asks for the name; our own challenge is not for us."""
        if claim != self.challenge.claim:
            self.announce(answers=claim.nonce)

    def _hear_presence(self, message: Incoming) -> None:
        """Begin to publish at the echo of our own presence: all that is retained came before it.

        Raises:
            RefusedError: another coordinator with our key runs, and its instance is the smaller.
        """
        presence = self.hear_name(message.payload)
        if presence is None:
            return
        if self.challenge.lost_to(presence):
            raise RefusedError(f"{self._another_runs} (instance {presence.instance})")
        if presence.instance == self.holder.instance and not message.retained:
            self.parts.publisher.begin()

    # Events

    def on_connected(self, event: Connected) -> None:
        self.parts.publisher.look()
        self.announce()
        self._control_again()

    def _control_again(self) -> None:
        """Have the broker shut out the revoked devices, and let in those released since.

        It may have lost its file, or the orders were given while nobody could tell it.
        """
        store = self.parts.store
        for device in store.let_in():
            self.do(ControlUser(device, denied=False))
        for device, ordered in store.standings().items():
            if ordered.standing is Standing.REVOKED:
                self.do(ControlUser(device, denied=True))

    def on_lost(self) -> None:
        self.parts.publisher.look()

    def on_delivered(self, event: Delivered) -> None:
        self.parts.publisher.delivered(event)

    def on_event(self, event: Any) -> None:
        """Answer a request of the API, once the updates that came before it are durable."""
        if isinstance(event, ReadRequest | OrderRequest):
            self.on_pause()
            answer(event, self.parts, self.do)
        else:
            super().on_event(event)

    def device_of(self, topic: str) -> str:
        return self.parts.identity.topics.device_of(topic)

    def on_message(self, message: Incoming) -> None:
        address = self.parts.identity.topics.parse(message.topic)
        if not self.sweeper.cleared(address, message):
            self.sweeper.check(address, message, self.clock())
            self._dispatch(address, message)

    def _dispatch(self, address: Address, message: Incoming) -> None:
        device, payload = address.device, message.payload
        match address.kind:
            case "coordinator claim":
                self._answer(decode(payload, Claim))
            case "coordinator status":
                self._hear_presence(message)
            case "state":
                self.parts.publisher.came(payload, message.retained)
            case "status" if payload:
                status = decode(payload, Status)
                self.handle(events.StatusCame(device, status, message.retained))
            case "report":
                self.handle(events.ReportCame(device, *reports.split(payload)))
            case "update":
                self.handle(events.UpdateChunkCame(device, address.version, payload))

    def acknowledge(self, message: Incoming) -> None:
        """Acknowledge once all that the message led to is durable: the broker repeats others."""
        self._unacknowledged.append(message)
        if not self.executor.group:
            self._acknowledge_all()

    def _acknowledge_all(self) -> None:
        messages, self._unacknowledged = self._unacknowledged, []
        for message in messages:
            message.ack()

    def on_pause(self) -> None:
        """Commit the updates that came together, and answer for them."""
        if self.executor.group:
            self.do(CommitGroup())
        self._acknowledge_all()

    # Commands

    def carry_out(self, command: Command) -> None:
        for event in self.executor.commit_before(command):
            self.handle(event)
        for event in self.executor.do(command):
            self.handle(event)
            if isinstance(event, events.RolledBack):
                self.drop_rest()  # it belongs to a round that is given up

    def on_full(self, command: Command, error: DiskFullError) -> None:
        """A full disk ends nothing: the rounds ask for all that they need when there is space."""
        log.error("%s", error, extra={"event": "disk-full"})
        self.handle(events.Full(True))
