"""The shell of a service: MQTT events and ticks go to its machine, commands to the outside.

The coordinator and the agent subclass `ServiceShell`, and are whole after their constructors.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fededge.errors import DiskFullError, TransportError, WireError
from fededge.service.commands import CommandQueue, Machine, unwatched
from fededge.service.events import Tick
from fededge.service.log_lines import LogLines
from fededge.service.presence import Holder
from fededge.transport.events import Denied
from fededge.transport.session import Connected, Delivered, Failed, Incoming, Lost, Session
from fededge.wire.messages import Presence, Status, decode

__all__ = ["ServiceShell"]

E = TypeVar("E")
C = TypeVar("C")
P = TypeVar("P", Presence, Status)


class ServiceShell(ABC, Generic[E, C, P]):
    """Drives one state machine over one MQTT session, and defends the name of the service.

    Args:
        machine: asked for `handle` alone.
        session: connected by the owner, which also subscribes.
        holder: our hold on the name.
        presence: the kind of message that is retained under the name.
        lines: where log lines go.
        clock: the time.
        watch: sees each event before it is handled, and each command before it is carried out.
    """

    def __init__(
        self,
        machine: Machine[E | Tick, C],
        session: Session,
        holder: Holder,
        presence: type[P],
        lines: LogLines,
        clock: Callable[[], float],
        watch: Callable[[object], None] = unwatched,
    ) -> None:
        self.session = session
        self.holder = holder
        self.clock = clock
        self.connected = False
        self._met = False
        self.lines = lines
        self._presence: type[P] = presence
        self._commands: CommandQueue[E | Tick, C] = CommandQueue(
            machine, self.carry_out, self.on_full, clock, watch
        )

    # For subclasses to fill in

    @abstractmethod
    def carry_out(self, command: C) -> None:
        """Do one command; DiskFullError drops the rest of its batch and leads to `on_full`."""

    @abstractmethod
    def on_full(self, command: C, error: DiskFullError) -> None:
        """A command found the disk full; no command is being carried out now."""

    @abstractmethod
    def on_message(self, message: Incoming) -> None:
        """Handle a message; WireError drops it with a line in the log."""

    @abstractmethod
    def on_connected(self, event: Connected) -> None:
        """The broker accepted us: announce, and resend what the broker may have lost."""

    @abstractmethod
    def announce(self) -> None:
        """Publish our presence, and tell `holder.says` its bytes."""

    @property
    @abstractmethod
    def rivalry(self) -> str:
        """One sentence that names the rival for our name."""

    @property
    def done(self) -> bool:
        """True if the loop should end by itself."""
        return False

    def on_tick(self) -> None:
        """Called at every tick, before the machine hears of it."""

    def on_pause(self) -> None:
        """Finish what was put off: no more events wait, or many have been handled."""

    def acknowledge(self, message: Incoming) -> None:
        """The message was handled: the broker need not send it again."""
        message.ack()

    def on_lost(self) -> None:
        """The connection is gone; the session is reconnecting."""

    def on_delivered(self, event: Delivered) -> None:
        """The broker has one of our messages."""
        self.session.delivered(event)

    def on_rival(self) -> None:
        """A rival was named in the log, and our presence was repeated."""

    def on_denied(self, reason: str) -> None:
        """The broker refused a message or a subscription of ours."""
        self.lines.warn(reason)

    def on_event(self, event: Any) -> None:
        """Handle an event of our own threads."""
        self.handle(event)

    # For subclasses to call

    def handle(self, event: E | Tick) -> None:
        """Have the machine decide on an event: now, or after the current batch of commands."""
        self._commands.handle(event)

    def do(self, *commands: C) -> None:
        """Carry out a batch of our own: now, or after the current batch."""
        self._commands.do(*commands)

    def drop_rest(self) -> None:
        """End the current batch after the command that is being carried out."""
        self._commands.drop_rest()

    def hear_name(self, payload: bytes) -> P | None:
        """Note a presence under our name; `tick` overwrites it if it is not ours."""
        presence = None
        with contextlib.suppress(WireError):
            presence = decode(payload, self._presence)
        self.holder.hears(payload, presence, self.clock())
        return presence

    # For the loop to call

    def take(self, event: Any) -> None:
        """Handle one event of the inbox."""
        match event:
            case Incoming():
                self._take_message(event)
            case Connected():
                self._note_connection()
                self.on_connected(event)
            case Delivered():
                self.on_delivered(event)
            case Lost(reason):
                self.connected = False
                self.holder.lost()
                self.on_lost()
                address = self.session.address
                self.lines.log.warning("connection to %s lost (%s)", address, reason)
            case Denied():
                self.on_denied(event.by(self.session.broker.username))
            case Failed(reason):
                raise TransportError(reason)
            case _:
                self.on_event(event)

    def _note_connection(self) -> None:
        said = "reconnected to %s" if self._met else "connected to %s"
        self.lines.log.info(said, self.session.address)
        self.connected = self._met = True

    def _take_message(self, message: Incoming) -> None:
        try:
            self.on_message(message)
        except WireError as error:
            self.lines.drop(message.topic, self.device_of(message.topic), error)
        self.acknowledge(message)

    def device_of(self, topic: str) -> str:
        """The device that a message is from, for the log; empty if that says nothing."""
        return ""

    def pause(self) -> None:
        """Finish what was put off while events waited."""
        self.on_pause()

    def tick(self) -> None:
        """Do what is due by time."""
        self.on_pause()
        self.lines.tick()
        self.on_tick()
        self._keep_name()
        self.handle(Tick())

    def _keep_name(self) -> None:
        """Repeat our presence, at a bounded rate, if somebody overwrote it."""
        if not self.holder.due(self.clock()):
            return
        self.announce()
        if self.holder.rival:
            self.lines.warn(self.rivalry)
            self.on_rival()
