"""Commands of a state machine are queued: none is carried out inside another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from fededge.errors import DiskFullError

__all__ = ["CommandQueue", "Machine", "unwatched"]

E = TypeVar("E")
C = TypeVar("C")
EventIn = TypeVar("EventIn", contravariant=True)
CommandOut = TypeVar("CommandOut", covariant=True)


class Machine(Protocol[EventIn, CommandOut]):
    """A state machine without I/O: all that a shell asks of it, besides a read-only view."""

    def handle(self, event: EventIn, now: float) -> Sequence[CommandOut]: ...


def unwatched(_: object) -> None:
    """Watch nothing: the default."""


class CommandQueue(Generic[E, C]):
    """Feeds events to a machine, and carries out the commands of each event as one batch.

    An event that comes up while a command is carried out is handled after the current batch. A
    command that finds the disk full drops the rest of its batch, which may rely on it; other
    commands do so with `drop_rest`.

    Args:
        machine: decides on the events.
        carry_out: does one command; may raise DiskFullError.
        on_full: is told which command found the disk full.
        clock: the time for the machine.
        watch: sees each event before it is handled, and each command before it is carried out.
    """

    def __init__(
        self,
        machine: Machine[E, C],
        carry_out: Callable[[C], None],
        on_full: Callable[[C, DiskFullError], None],
        clock: Callable[[], float],
        watch: Callable[[object], None] = unwatched,
    ) -> None:
        self._machine = machine
        self._carry_out = carry_out
        self._on_full = on_full
        self._clock = clock
        self._watch = watch
        self._batches: deque[Callable[[], Sequence[C]]] = deque()
        self._batch: deque[C] = deque()
        self._running = False

    def handle(self, event: E) -> None:
        """Have the machine decide on an event: now, or after the current batch."""
        self._put(lambda: self._decide(event))

    def do(self, *commands: C) -> None:
        """Carry out a batch that the machine did not ask for: now, or after the current one."""
        self._put(lambda: commands)

    def drop_rest(self) -> None:
        """End the current batch after the command that is being carried out."""
        self._batch.clear()

    def _put(self, batch: Callable[[], Sequence[C]]) -> None:
        self._batches.append(batch)
        if self._running:
            return
        self._running = True
        try:
            while self._batches:
                self._run(self._batches.popleft()())
        finally:
            self._running = False
            self._batch.clear()

    def _decide(self, event: E) -> Sequence[C]:
        self._watch(event)
        return self._machine.handle(event, self._clock())

    def _run(self, batch: Sequence[C]) -> None:
        self._batch.extend(batch)
        while self._batch:
            command = self._batch.popleft()
            self._watch(command)
            try:
                self._carry_out(command)
            except DiskFullError as error:
                self.drop_rest()
                self._on_full(command, error)
