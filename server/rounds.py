"""The coordinator's rounds as a state machine without I/O: events in, commands out.

The MQTT shell and the tests drive the same machine. It never looks at a clock: `now` comes in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fededge.config import RoundsConfig
from fededge.selection import choose
from fededge.wire.messages import Reply, Report, Status
from fededge_server.events import (
    Answer,
    Bad,
    Check,
    ChunkCame,
    Command,
    Discard,
    Event,
    Facts,
    Finish,
    Invite,
    Memory,
    Merge,
    Merged,
    Note,
    Open,
    Remember,
    ReportCame,
    StatusCame,
    Stored,
    Tick,
)
from fededge_server.reports import flaw, foreign
from fededge_server.transfers import Transfers

__all__ = ["Rounds"]


@dataclass
class Rounds:
    """Who is there, who was asked, who has answered; and when a round is over.

    `stored` are the updates of this round; `accepted` is every device's last one, so that a device
    which never heard its answer gets the same one again, however much later it asks.
    """

    facts: Facts
    config: RoundsConfig
    round: int
    version: str
    memory: Memory = field(default_factory=Memory)
    phase: Literal["waiting", "open", "merging", "done"] = "waiting"
    present: dict[str, Status] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    counted: int = 0
    invited: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    transfers: Transfers = field(default_factory=Transfers)
    checking: set[str] = field(default_factory=set)
    stored: dict[str, Report] = field(default_factory=dict)
    accepted: dict[str, Report] = field(default_factory=dict)
    deadline: float = math.inf

    def __post_init__(self) -> None:
        if self.round >= self.config.count:
            self.phase = "done"
        self.known |= self.memory.known
        self.accepted.update(self.memory.accepted)
        self.stored = {d: r for d, r in self.accepted.items() if r.version == self.version}

    def handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case ChunkCame():
                return self._chunk(event, now)  # decides nothing by itself, and there are many
            case StatusCame():
                commands = self._status(event.device, event.status)
            case ReportCame():
                commands = self._report(event.device, event.report, now)
            case Stored():
                commands = self._stored(event.device, event.report)
            case Bad():
                commands = self._bad(event.device, event.reason)
            case Merged():
                commands = self._merged(event.version)
            case Tick():
                commands = self.transfers.stalled(self.present, now)
        return commands + self._advance(now)

    # Presence

    def _status(self, device: str, status: Status) -> list[Command]:
        if status.device != device:
            text = f"a status of device '{status.device}' came on this one's topic: dropped"
            return [Note(text, device)]
        before = self.present.pop(device, None)
        if not status.online:
            return [Note("left", device)] if before else []
        if status.activity == "starting":
            return []
        if status.activity == "unable":
            self.failed |= {device} & self.invited  # no round waits for it
            return [Note(f"cannot take part: {status.problem}", device)]
        if status.layout != self.facts.layout:
            return self._stranger(device, status)
        self.present[device] = status
        self.known.add(device)
        asked = self._ask_if_free(device, status)
        if before is not None and before.instance == status.instance:
            return asked
        return [Note(f"joined with {status.examples} examples", device), *asked]

    def _stranger(self, device: str, status: Status) -> list[Command]:
        """A device with another network cannot take part: no round waits for it."""
        if device in self.invited:
            self.failed.add(device)
        reason = (
            f"the device's layout is {status.layout or 'unknown'}, "
            f"the federation's is {self.facts.layout}"
        )
        refused = Reply("refused", reason=reason, fatal=True)
        return [Note(f"refused: {reason}", device), Answer(device, refused)]

    def _ask_if_free(self, device: str, status: Status) -> list[Command]:
        """Ask a device that says it has nothing to do, if this round wants it.

        It may have joined since the round began, or its task was lost on the way.
        """
        heard = (self.stored, self.failed, self.transfers.open, self.checking)
        if self.phase != "open" or status.activity != "ready" or any(device in h for h in heard):
            return []
        if device in self.invited:
            return self._invitations([device])
        if self._places and len(self.invited - self.failed) >= self._places:
            return []
        self.invited.add(device)
        return [self._remember(), *self._invitations([device])]

    # Updates

    def _report(self, device: str, report: Report, now: float) -> list[Command]:
        reply = self._verdict(device, report)
        if reply is not None:
            text = f"update {reply.kind}: {reply.reason}" if reply.reason else "asked again"
            return [Note(text, device), Answer(device, reply)]
        if self.phase == "waiting" or device in self.checking:
            return []  # the device keeps its update, and is asked for it when the round opens
        return self.transfers.begin(device, report, now)

    def _verdict(self, device: str, report: Report) -> Reply | None:
        """What can be said to a report at once; None if its chunks are wanted."""
        reason = foreign(self.facts, device, report)
        if reason:
            return Reply("refused", report.version, reason)
        last = self.accepted.get(device)
        if last is not None and last.version == report.version:
            return Reply("accepted", report.version)
        current = report.version == self.version
        if self.phase in ("merging", "done") if current else report.round < self.round:
            return Reply("late", report.version, f"round {report.round + 1} is over")
        if not current:
            reason = f"trained from version {report.version}, wanted is {self.version}"
        elif self.phase == "open" and device not in self.invited:
            reason = f"the device was not asked in round {self.round + 1}"
        elif device in self.failed:
            reason = "an update of this device was refused in this round"
        else:
            reason = flaw(self.facts, report)
        return Reply("refused", report.version, reason) if reason else None

    def _chunk(self, event: ChunkCame, now: float) -> list[Command]:
        commands = self.transfers.take(event, now)
        self.checking |= {command.device for command in commands if isinstance(command, Check)}
        return commands

    def _stored(self, device: str, report: Report) -> list[Command]:
        self.checking.discard(device)
        self.stored[device] = self.accepted[device] = report
        return [Answer(device, Reply("accepted", report.version))]

    def _bad(self, device: str, reason: str) -> list[Command]:
        self.checking.discard(device)
        self.failed.add(device)
        return [
            Note(f"update refused: {reason}", device),
            Discard(device, self.version),
            Answer(device, Reply("refused", self.version, reason)),
        ]

    # Rounds

    def _advance(self, now: float) -> list[Command]:
        if self.phase == "waiting" and (
            self.memory.invited or len(self.present) >= self.config.min_devices
        ):
            return self._open(now) + self._advance(now)
        if self.phase != "open" or self.checking:
            return []  # what is being checked came in time, and must not be acknowledged in vain
        if self._over(now):
            return self._close()
        return self._extend(now) if now >= self.deadline else []

    def _open(self, now: float) -> list[Command]:
        """Begin a round, or go on with the one that an earlier process had begun."""
        begun, self.memory = self.memory.invited, Memory()
        chosen = begun or choose(self.present, self._places, self.facts.seed, self.round)
        self.invited = self.stored.keys() | chosen
        self.phase, self.deadline = "open", now + self.config.deadline
        return self._ask(self.invited & self.present.keys() - self.stored.keys())

    @property
    def _places(self) -> int:
        """How many a round asks; 0: all. 10 · 1.1 is 11.000000000000002, and 11 are meant."""
        return math.ceil(round(self.config.participants * self.config.over_select, 6))

    def _ask(self, devices: Iterable[str]) -> list[Command]:
        announced = Open(self.round, tuple(sorted(self.invited)))
        return [self._remember(), announced, *self._invitations(devices)]

    def _invitations(self, devices: Iterable[str]) -> list[Command]:
        return [Invite(device, self.round, self.version) for device in sorted(devices)]

    def _remember(self) -> Remember:
        self.counted = len(self.known)
        return Remember(self.round, tuple(sorted(self.invited)), tuple(sorted(self.known)))

    def _over(self, now: float) -> bool:
        """Enough have answered, all have, or the deadline has come with a quorum."""
        if len(self.stored) < self.config.quorum:
            return False
        wanted = self.config.participants or len(self.invited)
        waiting = self.invited - self.stored.keys() - self.failed
        return len(self.stored) >= wanted or not waiting or now >= self.deadline

    def _extend(self, now: float) -> list[Command]:
        """The deadline came without a quorum: keep what has come, ask all who are there again."""
        self.deadline = now + self.config.deadline
        self.failed.clear()
        again = self.present.keys() - self.stored.keys() - self.transfers.open.keys()
        self.invited |= again
        note = Note(
            f"round {self.round + 1}: deadline with {len(self.stored)} of "
            f"{self.config.quorum} updates; asking {len(again)} devices again"
        )
        return [note, *self._ask(again)]

    def _close(self) -> list[Command]:
        """Merge what has come; who is still sending hears at once that it is too late."""
        reply = Reply("late", self.version, f"round {self.round + 1} is over")
        late = [Answer(device, reply) for device in sorted(self.transfers.open)]
        reports = {device: self.stored[device] for device in sorted(self.stored)}
        self.transfers.open.clear()
        self.phase, self.deadline = "merging", math.inf
        return [*late, Merge(self.round, reports, self.counted)]

    def _merged(self, version: str) -> list[Command]:
        self.round += 1
        self.version = version
        self.invited, self.failed, self.stored = set(), set(), {}
        self.phase = "waiting" if self.round < self.config.count else "done"
        return [Finish()] if self.phase == "done" else []
