"""The coordinator's rounds as a state machine without I/O: events in, commands out.

The MQTT shell and the tests drive the same machine. It never looks at a clock: `now` comes in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fededge.config import RoundsConfig
from fededge.errors import WireError
from fededge.wire.chunks import Assembly, unpack
from fededge.wire.messages import Reply, Report, Status
from fededge.selection import choose

__all__ = [
    "Answer",
    "Bad",
    "Check",
    "ChunkCame",
    "Command",
    "Discard",
    "Event",
    "Facts",
    "Finish",
    "Invite",
    "Keep",
    "Merge",
    "Merged",
    "Note",
    "Open",
    "ReportCame",
    "Rounds",
    "StatusCame",
    "Stored",
    "Tick",
]

STALLED = 5.0
"""Seconds without a chunk after which the missing ones are asked for again."""

MOST_ASKED = 1000
"""Missing chunks named in one reply."""


# Events


@dataclass(frozen=True)
class StatusCame:
    device: str
    status: Status


@dataclass(frozen=True)
class ReportCame:
    device: str
    report: Report


@dataclass(frozen=True)
class ChunkCame:
    device: str
    version: str
    message: bytes


@dataclass(frozen=True)
class Stored:
    """A complete update was checked and is on disk."""

    device: str
    report: Report


@dataclass(frozen=True)
class Bad:
    """A complete update did not pass its check."""

    device: str
    reason: str


@dataclass(frozen=True)
class Merged:
    """The round's updates became this version, which is on disk."""

    version: str


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = StatusCame | ReportCame | ChunkCame | Stored | Bad | Merged | Tick


# Commands


@dataclass(frozen=True)
class Open:
    """Tell the world that a round begins."""

    round: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Invite:
    device: str
    round: int
    version: str


@dataclass(frozen=True)
class Answer:
    device: str
    reply: Reply


@dataclass(frozen=True)
class Keep:
    """Write a piece of an update to the spool."""

    device: str
    version: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Check:
    """The update is complete: check it, make it durable, and answer with Stored or Bad."""

    device: str
    report: Report


@dataclass(frozen=True)
class Discard:
    """Forget what was kept of an update."""

    device: str
    version: str


@dataclass(frozen=True)
class Merge:
    """Make the next version of these updates, and answer with Merged."""

    round: int
    reports: Mapping[str, Report]


@dataclass(frozen=True)
class Finish:
    """All rounds are done."""


@dataclass(frozen=True)
class Note:
    """For the log: something happened that a person may ask about."""

    text: str
    device: str = ""


Command = Open | Invite | Answer | Keep | Check | Discard | Merge | Finish | Note


@dataclass(frozen=True)
class Facts:
    """What does not change during a run."""

    run: str
    seed: int
    layout: str
    scalars: frozenset[str]
    chunk_bytes: int
    payload_limit: int


@dataclass
class Transfer:
    """An update on its way: what was reported of it, and which chunks have come."""

    report: Report
    assembly: Assembly
    touched: float


@dataclass
class Rounds:
    """Who is there, who was asked, who has answered; and when a round is over."""

    facts: Facts
    config: RoundsConfig
    round: int
    version: str
    phase: Literal["waiting", "open", "merging", "done"] = "waiting"
    present: dict[str, Status] = field(default_factory=dict)
    invited: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    stored: dict[str, Report] = field(default_factory=dict)
    transfers: dict[str, Transfer] = field(default_factory=dict)
    deadline: float = math.inf

    def __post_init__(self) -> None:
        if self.round >= self.config.count:
            self.phase = "done"

    def handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case StatusCame():
                commands = self._status(event.device, event.status)
            case ReportCame():
                commands = self._report(event.device, event.report, now)
            case ChunkCame():
                commands = self._chunk(event, now)
            case Stored():
                commands = self._stored(event.device, event.report)
            case Bad():
                commands = self._bad(event.device, event.reason)
            case Merged():
                commands = self._merged(event.version)
            case Tick():
                commands = self._stalled(now)
        return commands + self._advance(now)

    # Presence

    def _status(self, device: str, status: Status) -> list[Command]:
        known = self.present.pop(device, None)
        if not status.online:
            return [Note("left", device)] if known else []
        if status.activity == "starting":
            return []
        if status.layout != self.facts.layout:
            reason = (
                f"the device's layout is {status.layout or 'unknown'}, "
                f"the federation's is {self.facts.layout}"
            )
            return [
                Note(f"refused: {reason}", device),
                Answer(device, Reply("refused", reason=reason, fatal=True)),
            ]
        self.present[device] = status
        if known is not None and known.instance == status.instance:
            return []
        joined: list[Command] = [Note(f"joined with {status.examples} examples", device)]
        if self._awaited(device):
            joined.append(Invite(device, self.round, self.version))
        return joined

    def _awaited(self, device: str) -> bool:
        return self.phase == "open" and device in self.invited - self.stored.keys() - self.failed

    # Updates

    def _report(self, device: str, report: Report, now: float) -> list[Command]:
        reply = self._objection(device, report)
        if reply is not None:
            self.transfers.pop(device, None)
            note = Note(f"update {reply.kind}: {reply.reason}", device)
            return [note, Answer(device, reply)]
        if device in self.stored:
            return [Answer(device, Reply("accepted", self.version))]
        transfer = self.transfers.get(device)
        if transfer is None or transfer.report.manifest != report.manifest:
            self.transfers[device] = Transfer(report, Assembly(report.manifest), now)
            return [Discard(device, report.version)]
        return []

    def _objection(self, device: str, report: Report) -> Reply | None:
        """Why this report is not for this round; None if it is."""

        def refused(reason: str) -> Reply:
            return Reply("refused", report.version, reason)

        facts, manifest = self.facts, report.manifest
        if report.device != device:
            return refused(f"the report names device '{report.device}', its topic '{device}'")
        if report.run != facts.run:
            return refused("the update is of another run of this federation")
        if report.layout != facts.layout:
            return refused(f"the update's layout is {report.layout}, ours is {facts.layout}")
        if report.version != self.version or self.phase != "open":
            if report.round < self.round or self.phase != "open":
                return Reply("late", report.version, f"round {report.round} is over")
            return refused(f"trained from version {report.version}, wanted is {self.version}")
        if device not in self.invited:
            return refused(f"the device was not asked in round {self.round}")
        if device in self.failed:
            return refused("an update of this device was refused in this round")
        if manifest.chunk_bytes != facts.chunk_bytes or manifest.bytes > facts.payload_limit:
            return refused(
                f"{manifest.bytes} bytes in chunks of {manifest.chunk_bytes} are not what the "
                f"federation takes: at most {facts.payload_limit} in chunks of {facts.chunk_bytes}"
            )
        if manifest.chunks != max(1, -(-manifest.bytes // manifest.chunk_bytes)):
            return refused(f"{manifest.chunks} chunks do not make {manifest.bytes} bytes")
        odd = sorted(report.scalars.keys() - facts.scalars)
        if odd or "examples" not in report.scalars:
            return refused(f"the scalars are not those of the method: {odd or 'no examples'}")
        if not all(map(math.isfinite, report.scalars.values())) or report.scalars["examples"] < 0:
            return refused("a scalar is not finite, or a count is negative")
        return None

    def _chunk(self, event: ChunkCame, now: float) -> list[Command]:
        device, transfer = event.device, self.transfers.get(event.device)
        if transfer is None or transfer.report.version != event.version:
            return []  # late, or before its report: what is missing will be asked for
        try:
            chunk = unpack(event.message)
            offset = transfer.assembly.offset(chunk)
        except WireError as error:
            return [Note(f"chunk dropped: {error}", device)]
        transfer.touched = now
        if offset is None:
            return []
        transfer.assembly.have.add(chunk.index)
        keep = Keep(device, event.version, offset, bytes(chunk.data))
        if not transfer.assembly.complete:
            return [keep]
        del self.transfers[device]
        return [keep, Check(device, transfer.report)]

    def _stalled(self, now: float) -> list[Command]:
        """Ask again for what has not come for a while."""
        commands: list[Command] = []
        for device, transfer in self.transfers.items():
            if device in self.present and now - transfer.touched >= STALLED:
                transfer.touched = now
                missing = tuple(transfer.assembly.missing())[:MOST_ASKED]
                commands.append(Answer(device, Reply("resend", self.version, chunks=missing)))
        return commands

    def _stored(self, device: str, report: Report) -> list[Command]:
        self.stored[device] = report
        return [Answer(device, Reply("accepted", self.version))]

    def _bad(self, device: str, reason: str) -> list[Command]:
        self.failed.add(device)
        return [
            Note(f"update refused: {reason}", device),
            Discard(device, self.version),
            Answer(device, Reply("refused", self.version, reason)),
        ]

    # Rounds

    def _advance(self, now: float) -> list[Command]:
        if self.phase == "waiting" and len(self.present) >= self.config.min_devices:
            return self._open(now)
        if self.phase == "open" and self._over(now):
            reports = {device: self.stored[device] for device in sorted(self.stored)}
            self.transfers.clear()
            self.phase = "merging"
            self.deadline = math.inf
            return [Merge(self.round, reports)]
        if self.phase == "open" and now >= self.deadline:
            return self._extend(now)
        return []

    def _open(self, now: float) -> list[Command]:
        count = math.ceil(self.config.participants * self.config.over_select)
        chosen = choose(self.present, count, self.facts.seed, self.round)
        self.phase, self.deadline = "open", now + self.config.deadline
        self.invited, self.failed, self.stored, self.transfers = set(chosen), set(), {}, {}
        invitations = [Invite(device, self.round, self.version) for device in chosen]
        return [Open(self.round, tuple(chosen)), *invitations]

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
        again = sorted(self.present.keys() - self.stored.keys())
        self.invited |= set(again)
        note = Note(
            f"round {self.round}: deadline with {len(self.stored)} of "
            f"{self.config.quorum} updates; asking {len(again)} devices again"
        )
        return [note, *(Invite(device, self.round, self.version) for device in again)]

    def _merged(self, version: str) -> list[Command]:
        self.round += 1
        self.version = version
        self.invited, self.failed, self.stored = set(), set(), {}
        self.phase = "waiting" if self.round < self.config.count else "done"
        return [Finish()] if self.phase == "done" else []
