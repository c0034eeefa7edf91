"""The coordinator's rounds as a state machine without I/O: events in, commands out.

The MQTT shell and the tests drive the same machine. It never looks at a clock: `now` comes in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
    Full,
    Invite,
    Memory,
    Merge,
    Merged,
    Note,
    Open,
    Refuse,
    Remember,
    ReportCame,
    StatusCame,
    Stored,
    Tick,
)
from fededge_server.fitness import Fitness
from fededge_server.reports import flaw, foreign
from fededge_server.transfers import Transfers

__all__ = ["Rounds"]


@dataclass
class Rounds:
    """Who is there, who was asked, who has answered; and when a round is over.

    No round waits for who has `failed`; `refused` are those of them whose update had to be.
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
    refused: set[str] = field(default_factory=set)
    transfers: Transfers = field(default_factory=Transfers)
    checking: set[str] = field(default_factory=set)
    stored: dict[str, Report] = field(default_factory=dict)
    accepted: dict[str, Report] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    full: bool = False
    deadline: float = math.inf

    def __post_init__(self) -> None:
        if self.round >= self.config.count:
            self.phase = "done"
        self.fitness = Fitness(self.config)
        self.known |= self.memory.known
        self.accepted.update(self.memory.accepted)
        self.recent.update(self.memory.recent)
        unmerged = self.memory.stored
        self.stored = {
            d: r for d, r in self.accepted.items() if r.version == self.version or d in unmerged
        }

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.memory.quarantined or self.memory.coming:
            self._recall(now)
        match event:
            case ChunkCame():
                return self._chunk(event, now)  # decides nothing by itself, and there are many
            case StatusCame():
                commands = self._status(event.device, event.status, now)
            case ReportCame():
                commands = self._report(event.device, event.report, now)
            case Stored():
                commands = self._stored(event.device, event.report)
            case Bad():
                commands = self._bad(event.device, event.reason, event.version, now)
            case Merged():
                commands = self._merged(event.version)
            case Full():
                commands = self._full(event.full)
            case Tick():
                commands = self._stalled(now) + self._retry(now)
        return commands + self._advance(now)

    def _recall(self, now: float) -> None:
        """Take up what an earlier process had begun; its clock was another one."""
        memory, self.memory = self.memory, replace(self.memory, quarantined=frozenset(), coming={})
        for device in memory.quarantined:
            self.fitness.quarantine(device, now)
        for device, (report, have) in memory.coming.items():
            if not self._late(report) and not self._outdated(device, report):
                self.transfers.resume(device, report, have, now)

    # Presence

    def _status(self, device: str, status: Status, now: float) -> list[Command]:
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
        if status.activity == "failed":
            return self._failed(device, status, now)
        asked = self._ask_if_free(device, status, now)
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

    def _failed(self, device: str, status: Status, now: float) -> list[Command]:
        """A turn failed on the device: it rests, and is asked again, but not for ever."""
        if device not in self.invited or device in self.failed or device in self.fitness.resting:
            return []
        again = self.fitness.failed(device, now)
        if not again:
            self.failed.add(device)
        return [Note(f"failed, {'rests' if again else 'sits out'}: {status.problem}", device)]

    def _retry(self, now: float) -> list[Command]:
        """Ask those again that have rested after a failure."""
        if self.phase != "open":
            return []
        waiting = self.invited - self.stored.keys() - self.failed
        return self._invitations(
            device
            for device in sorted(waiting & self.fitness.resting.keys() & self.present.keys())
            if self.fitness.rested(device, now)
        )

    def _ask_if_free(self, device: str, status: Status, now: float) -> list[Command]:
        """Ask a device that says it has nothing to do, if this round wants it.

        It may have joined since the round began, or its task was lost on the way.
        """
        heard = (self.stored, self.failed, self.transfers.open, self.checking)
        if self.phase != "open" or status.activity != "ready" or any(device in h for h in heard):
            return []
        if device in self.invited:
            return self._invitations([device])
        places = self._places(len(self.invited))
        if places and len(self.invited - self.failed) >= places:
            return []
        if not self.fitness.fit(device, status, now):
            return []
        self.invited.add(device)
        return [self._remember(), *self._invitations([device])]

    # Updates

    def _report(self, device: str, report: Report, now: float) -> list[Command]:
        reply = self._verdict(device, report, now)
        if reply is not None:
            text = f"update {reply.kind}: {reply.reason}" if reply.reason else "asked again"
            return [Note(text, device), Answer(device, reply)]
        if self.phase == "open":
            wrong = flaw(self.facts, report)
            if wrong:
                return self._bad(device, wrong, report.version, now)
        busy = self.full or device in self.checking or device in self.stored
        if self.phase != "open" or busy:
            return []  # the device keeps its update, and asks again when the round opens
        return self.transfers.begin(device, report, now)

    def _verdict(self, device: str, report: Report, now: float) -> Reply | None:
        """What can be said to a report at once; None if its chunks are wanted, now or later."""
        reason = foreign(self.facts, device, report)
        if reason:
            return Reply("refused", report.version, reason)
        last = self.accepted.get(device)
        if last is not None and last.version == report.version:
            return Reply("accepted", report.version)
        late = self._late(report)
        if late:
            return Reply("late", report.version, late)
        if self._outdated(device, report):
            reason = "a later update of this device was accepted: this one is a repetition"
        elif report.version != self.version and report.version not in self.recent:
            reason = f"trained from version {report.version}, wanted is {self.version}"
        elif self._uninvited(device, report):
            reason = f"the device was not asked in round {self.round + 1}"
        elif device in self.refused:
            reason = "an update of this device was refused in this round"
        elif self.fitness.out(device, now):
            reason = "the device is in quarantine: too many of its updates had to be refused"
        return Reply("refused", report.version, reason) if reason else None

    def _late(self, report: Report) -> str:
        """Why it is too late for an update; empty if it is not.

        It is not before the next version is in the journal: until then a coordinator that starts
        again goes on with the same round, and asks for the update.
        """
        over = f"round {report.round + 1} is over"
        if report.version == self.version:
            return over if self.phase == "done" else ""
        if report.round >= self.round:
            return ""
        fresh = self.round - report.round <= self.config.max_staleness
        taken = self.config.folds and self.phase != "done" and report.version in self.recent
        return "" if taken and fresh else over

    def _outdated(self, device: str, report: Report) -> bool:
        """Whether the device has gone on since: this update was decided on long ago."""
        last = self.accepted.get(device)
        return last is not None and report.round <= last.round

    def _uninvited(self, device: str, report: Report) -> bool:
        current = report.version == self.version
        return self.phase == "open" and current and device not in self.invited

    def _chunk(self, event: ChunkCame, now: float) -> list[Command]:
        if self.phase == "merging":
            return []  # it is in no version that is being made; if one can take it, it is asked for
        return self._checked(self.transfers.take(event, now))

    def _stalled(self, now: float) -> list[Command]:
        """Ask for chunks that do not come, and for a turn: the device may have lost its update."""
        if self.phase == "merging":
            return []
        asked = self._checked(self.transfers.stalled(self.present, now))
        silent = (c for c in asked if isinstance(c, Answer) and c.reply.version == self.version)
        return asked + self._invitations(c.device for c in silent if c.device in self.invited)

    def _checked(self, commands: list[Command]) -> list[Command]:
        """The same commands; no round ends before what they check is decided on."""
        self.checking |= {command.device for command in commands if isinstance(command, Check)}
        return commands

    def _stored(self, device: str, report: Report) -> list[Command]:
        self.checking.discard(device)
        self.stored[device] = self.accepted[device] = report
        self.fitness.well(device)
        return [Answer(device, Reply("accepted", report.version))]

    def _bad(self, device: str, reason: str, version: str, now: float) -> list[Command]:
        version = version or self.version
        self.checking.discard(device)
        self.failed.add(device)
        self.refused.add(device)
        quarantined = self.fitness.refused(device, now)
        return [
            Note(f"update refused{', now in quarantine' * quarantined}: {reason}", device),
            Discard(device, version),
            Refuse(device, version, reason, quarantined),
            Answer(device, Reply("refused", version, reason)),
        ]

    def _full(self, full: bool) -> list[Command]:
        """Take nothing while the disk is full: the devices keep their updates, and ask again."""
        changed, self.full = full != self.full, full
        if not full:
            return [Note("there is space again"), *self._ask_again()] if changed else []
        dropped = [Discard(d, t.report.version) for d, t in self.transfers.open.items()]
        self.transfers.open.clear()
        self.checking.clear()
        text = "the disk is full: nobody is asked, and updates are not taken"
        return [*dropped, Note(text)] if changed else [*dropped]

    def _ask_again(self) -> list[Command]:
        """Whom the round waits for: while the disk was full, nobody was told that he is asked."""
        if self.phase != "open":
            return []
        waiting = self.invited - self.stored.keys() - self.failed - self.fitness.resting.keys()
        return [self._remember(), *self._invitations(waiting & self.present.keys())]

    # Rounds

    def _advance(self, now: float) -> list[Command]:
        if self.phase == "waiting" and (
            self.memory.invited or len(self._fit(now)) >= self.config.min_devices
        ):
            return self._open(now) + self._advance(now)
        if self.phase != "open" or self.checking:
            return []  # what is being checked came in time, and must not be acknowledged in vain
        if self._over(now):
            return self._close()
        short = len(self.stored) < self.config.quorum
        return self._extend(now) if now >= self.deadline and short else []

    def _fit(self, now: float) -> list[str]:
        return [d for d, status in self.present.items() if self.fitness.fit(d, status, now)]

    def _open(self, now: float) -> list[Command]:
        """Begin a round, or go on with the one that an earlier process had begun."""
        begun, self.memory = self.memory.invited, Memory()
        chosen = begun or self._choose(self._fit(now))
        self.invited = self.stored.keys() | chosen
        self.failed = self._sitting_out(now)
        self.phase, self.deadline = "open", now + self.config.deadline
        return self._ask(self.invited & self.present.keys() - self.stored.keys() - self.failed)

    def _sitting_out(self, now: float) -> set[str]:
        """Of those whom the round has asked: who was put in quarantine since."""
        return {device for device in self.invited if self.fitness.out(device, now)}

    def _choose(self, fit: list[str]) -> list[str]:
        heard = {device: report.round for device, report in self.accepted.items()}
        places, how = self._places(len(fit)), self.config.selection
        return choose(fit, places, self.facts.seed, self.round, how, heard)

    def _places(self, there: int) -> int:
        """How many a round asks; 0: all. 10 · 1.1 is 11.000000000000002, and 11 are meant."""
        config = self.config
        if config.mode == "buffered":
            return 0
        wanted = config.share * there if config.share else config.participants
        return math.ceil(round(wanted * config.over_select, 6))

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
        waiting = self.invited - self.stored.keys() - self.failed
        answered = len(self.stored.keys() & self.invited)
        return answered >= self._wanted or not waiting or self._expired(now)

    @property
    def _wanted(self) -> int:
        """Updates that end a round at once."""
        if self.config.mode == "buffered":
            return self.config.buffer
        if self.config.share:
            return math.ceil(round(len(self.invited) / self.config.over_select, 6))
        return self.config.participants or len(self.invited)

    def _expired(self, now: float) -> bool:
        """The deadline has come; who is sending has a grace."""
        sending = self.transfers.open.keys() & self.present.keys()
        return now >= self.deadline + (self.config.grace if sending else 0.0)

    def _extend(self, now: float) -> list[Command]:
        """The deadline came without a quorum: keep what has come, ask all who are there again."""
        self.deadline = now + self.config.deadline
        self.failed, self.refused = self._sitting_out(now), set()
        again = set(self._fit(now)) - self.stored.keys() - self.transfers.open.keys()
        self.invited |= again
        note = Note(
            f"round {self.round + 1}: deadline with {len(self.stored)} of "
            f"{self.config.quorum} updates; asking {len(again)} devices again"
        )
        return [note, *self._ask(again)]

    def _close(self) -> list[Command]:
        """Merge what has come; who is still sending hears of it once that is done."""
        reports = {device: self.stored[device] for device in sorted(self.stored)}
        self.phase, self.deadline = "merging", math.inf
        return [Merge(self.round, reports, self.counted)]

    def _give_up(self, devices: Iterable[str]) -> list[Command]:
        """Their updates are of no use any more, and need not be sent to the end."""
        dropped = {device: self.transfers.open.pop(device).report for device in sorted(devices)}
        return [
            Answer(device, Reply("late", report.version, f"round {report.round + 1} is over"))
            for device, report in dropped.items()
        ]

    def _merged(self, version: str) -> list[Command]:
        self.recent[self.version] = self.round
        self.round += 1
        oldest = self.round - self.config.max_staleness
        self.recent = {v: number for v, number in self.recent.items() if number >= oldest}
        self.version = version
        self.invited, self.failed, self.refused, self.stored = set(), set(), set(), {}
        self.phase = "waiting" if self.round < self.config.count else "done"
        stale = [d for d, t in self.transfers.open.items() if self._late(t.report)]
        return [*self._give_up(stale), *([Finish()] if self.phase == "done" else [])]
