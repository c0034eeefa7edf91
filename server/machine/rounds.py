"""The coordinator's rounds as a state machine without I/O: events in, commands out.

The MQTT shell and the tests drive the same machine. It never looks at a clock: `now` comes in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fededge.config import RoundsConfig
from fededge.federated.bounds import norm_limit, outlier
from fededge.federated.selection import choose
from fededge.wire.messages import Reply, Report, Status, round_of
from fededge_server.machine.eligibility import Eligibility
from fededge_server.machine.events import (
    ACCURACY,
    Bad,
    Check,
    Command,
    Discard,
    Event,
    Full,
    Invite,
    Judge,
    Merge,
    MergeDone,
    Note,
    Recalled,
    Refuse,
    Remember,
    ReportCame,
    Revoked,
    RolledBack,
    RoundOpened,
    RunFacts,
    RunFinished,
    SendReply,
    StatusCame,
    Stored,
    Tick,
    UpdateChunkCame,
)
from fededge_server.machine.leases import Leases
from fededge_server.machine.report_checks import flaw, foreign
from fededge_server.machine.transfers import Transfers

__all__ = ["Rounds"]

MOST_SWIFT = 2 / 3
"""Once so many have answered, the others have `slack` times their time: fewer may be hostile."""

LEAST_WAIT = 10.0
"""Seconds that a round waits at least for those who have not answered."""

JUMP = 10
"""An announcement of so many times the examples before is named in the log."""


@dataclass
class Rounds:
    """Who is there, who was asked, who has answered; and when a round is over.

    `failed` are devices that this round no longer waits for; `refused` are those of them whose
    update had to be. `invited` are the devices that were asked for this version, with the examples
    that each announced, `asked` those of earlier versions. `stored` are the updates of this round,
    `fresh` the norms of their changes; `norms` those of every device's last merged one. `accepted`
    is every device's last update, so that a device which never heard its answer gets the same one
    again, however much later it asks. A report's word decides nothing that is known here.
    """

    facts: RunFacts
    config: RoundsConfig
    round: int
    version: str
    memory: Recalled = field(default_factory=Recalled)
    phase: Literal["waiting", "open", "merging", "done"] = "waiting"
    present: dict[str, Status] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    announced: dict[str, int] = field(default_factory=dict)
    counted: int = 0
    invited: dict[str, int] = field(default_factory=dict)
    asked: dict[str, Mapping[str, int]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    transfers: Transfers = field(default_factory=Transfers)
    checking: set[str] = field(default_factory=set)
    stored: dict[str, Report] = field(default_factory=dict)
    accepted: dict[str, Report] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    fresh: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    full: bool = False
    opened: float = 0.0
    deadline: float = math.inf
    cutoff: float = math.inf

    def __post_init__(self) -> None:
        if self.round >= self.config.count:
            self.phase = "done"
        self.eligibility = Eligibility(self.config)
        self.leases = Leases(self.config.lease)
        memory = self.memory
        self.known |= memory.known
        self.accepted.update(memory.accepted)
        self.recent.update(memory.recent)
        self.asked = {v: a for v, a in memory.asked.items() if v in self.recent}
        self.stored = {
            d: r
            for d, r in self.accepted.items()
            if r.version == self.version or d in memory.stored
        }
        self.fresh = {d: memory.norms.get(d, 0.0) for d in self.stored}
        self.norms = {d: norm for d, norm in memory.norms.items() if d not in self.stored}

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.memory.quarantined or self.memory.coming:
            self._recall(now)
        match event:
            case UpdateChunkCame():
                return self._chunk(event, now)  # decides nothing by itself, and there are many
            case StatusCame():
                commands = self._status(event, now)
            case ReportCame():
                commands = self._report(event.device, event.report, now)
            case Stored():
                commands = self._stored(event, now)
            case Bad():
                commands = self._bad(event.device, event.reason, event.version, now)
            case Revoked():
                commands = self._revoked(event.device, event.reason, now)
            case MergeDone():
                commands = self._merged(event)
            case RolledBack():
                commands = self._rolled_back(event)
            case Full():
                commands = self._full(event.full)
            case Tick():
                commands = self._expire(now) + self._stalled(now) + self._retry(now)
        return commands + self._advance(now)

    def _recall(self, now: float) -> None:
        """Take up what an earlier process had begun; its clock was another one."""
        memory, self.memory = self.memory, replace(self.memory, quarantined=frozenset(), coming={})
        for device in memory.quarantined:
            self.eligibility.quarantine(device, now)
        for device, (report, have) in memory.coming.items():
            if not self._late(report.version) and not self._outdated(device, report.version):
                self.transfers.resume(device, report, have, now)

    # Presence

    def _status(self, event: StatusCame, now: float) -> list[Command]:
        device, status = event.device, event.status
        if status.device != device:
            text = f"a status of device '{status.device}' came on this one's topic: dropped"
            return [Note(text, device)]
        if event.retained and not self.leases.valid(device, now):
            return []  # the broker kept it of a device that is gone
        before = self.present.pop(device, None)
        if not status.online:
            return [Note("left", device)] if before else []
        if event.retained:
            self.leases.begin([device], now)
        else:
            self.leases.renew(device, now)
        if status.activity == "starting":
            return []
        if status.activity == "unable":
            self.failed |= {device} & self.invited.keys()  # no round waits for it
            return [Note(f"cannot take part: {status.problem}", device)]
        if status.layout != self.facts.layout:
            return self._stranger(device, status)
        self.present[device] = status
        self.known.add(device)
        jump = self._jump(device, status.examples)
        if status.activity == "failed":
            return [*jump, *self._failed(device, status, now)]
        asked = self._ask_if_free(device, status, now)
        if before is not None and before.instance == status.instance:
            return [*jump, *asked]
        return [Note(f"joined with {status.examples} examples", device), *jump, *asked]

    def _jump(self, device: str, examples: int) -> list[Command]:
        """Name a device that suddenly has far more examples: they are what its word weighs."""
        before = self.announced.get(device, examples)
        self.announced[device] = examples
        if examples <= JUMP * max(before, 1):
            return []
        return [Note(f"announces {examples} examples, {before} before", device)]

    def _expire(self, now: float) -> list[Command]:
        """Who gave no sign of life for a while is not there, whatever the broker keeps of it."""
        gone = [device for device in self.present if not self.leases.valid(device, now)]
        for device in gone:
            del self.present[device]
        seconds = self.config.lease
        return [Note(f"gave no sign of life for {seconds:.0f} s: gone", d) for d in gone]

    def _stranger(self, device: str, status: Status) -> list[Command]:
        """A device with another network cannot take part: no round waits for it."""
        if device in self.invited:
            self.failed.add(device)
        reason = (
            f"the device's layout is {status.layout or 'unknown'}, "
            f"the federation's is {self.facts.layout}"
        )
        return [Note(f"cannot take part: {reason}", device)]

    def _failed(self, device: str, status: Status, now: float) -> list[Command]:
        """A turn failed on the device: it rests, and is asked again, but not for ever."""
        if (
            device not in self.invited
            or device in self.failed
            or device in self.eligibility.resting
        ):
            return []
        again = self.eligibility.failed(device, now)
        if not again:
            self.failed.add(device)
        return [Note(f"failed, {'rests' if again else 'sits out'}: {status.problem}", device)]

    def _retry(self, now: float) -> list[Command]:
        """Ask those again that have rested after a failure."""
        if self.phase != "open":
            return []
        resting = self._awaited & self.eligibility.resting.keys() & self.present.keys()
        return self._invitations(d for d in sorted(resting) if self.eligibility.rested(d, now))

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
        if places and len(self.invited.keys() - self.failed) >= places:
            return []
        if not self.eligibility.fit(device, status, now):
            return []
        self.invited[device] = status.examples
        return [self._remember(), *self._invitations([device])]

    # Updates

    def _report(self, device: str, report: Report, now: float) -> list[Command]:
        self.leases.renew(device, now)
        reply = self._verdict(device, report, now)
        if reply is None and self.phase == "open":
            wrong = flaw(self.facts, report, self._announced(device, report.version))
            # Anybody can make a bad report on an open broker: it tells nothing of the device.
            reply = Reply("refused", report.version, wrong) if wrong else None
        if reply is not None:
            text = f"update {reply.kind}: {reply.reason}" if reply.reason else "asked again"
            return [Note(text, device), SendReply(device, reply)]
        busy = self.full or device in self.checking or device in self.stored
        if self.phase != "open" or busy:
            return []  # the device keeps its update, and asks again when the round opens
        return self.transfers.begin(device, report, now)

    def _announced(self, device: str, version: str) -> int:
        """The examples that a device had when it was asked, or has now."""
        status = self.present.get(device)
        return max(self._asked(version).get(device, 0), status.examples if status else 0)

    def _asked(self, version: str) -> Mapping[str, int]:
        """Who was asked for a version, with their examples: the journal's word, and no other."""
        return self.invited if version == self.version else self.asked.get(version, {})

    def _verdict(self, device: str, report: Report, now: float) -> Reply | None:
        """What can be said to a report at once; None if its chunks are wanted, now or later."""
        version = report.version
        reason = foreign(self.facts, device, report)
        if reason:
            return Reply("refused", version, reason)
        last = self.accepted.get(device)
        if last is not None and last.version == version:
            return Reply("accepted", version)
        late = self._late(version)
        if late:
            return Reply("late", version, late)
        if version != self.version and version not in self.recent:
            reason = f"trained from version {version}, wanted is {self.version}"
        elif self._outdated(device, version):
            reason = "a later update of this device was accepted: this one is a repetition"
        elif self.phase == "open" and device not in self._asked(version):
            reason = f"the device was not asked for version {version}"
        elif device in self.refused:
            reason = "an update of this device was refused in this round"
        elif self.eligibility.out(device, now):
            reason = "the device is in quarantine: too many of its updates had to be refused"
        return Reply("refused", version, reason) if reason else None

    def _late(self, version: str) -> str:
        """Why it is too late for an update of a version; empty if it is not.

        It is not before the next version is in the journal: until then a coordinator that starts
        again goes on with the same round, and asks for the update.
        """
        number = self.recent.get(version, self.round if version == self.version else None)
        if number is None:  # no version of ours, or one that is long forgotten
            number = round_of(version)
            return f"round {number + 1} is over" if number < self.round else ""
        fresh = self.round - number <= self.config.max_staleness
        taken = version == self.version or (self.config.folds and fresh)
        return "" if taken and self.phase != "done" else f"round {number + 1} is over"

    def _outdated(self, device: str, version: str) -> bool:
        """Whether the device has gone on since: this update was decided on long ago."""
        last = self.accepted.get(device)
        return last is not None and round_of(version) <= round_of(last.version)

    def _chunk(self, event: UpdateChunkCame, now: float) -> list[Command]:
        self.leases.renew(event.device, now)
        if self.phase == "merging":
            return []  # it is in no version that is being made; if one can take it, it is asked for
        return self._checked(self.transfers.take(event, now))

    def _stalled(self, now: float) -> list[Command]:
        """Ask for chunks that do not come, and for a turn: the device may have lost its update."""
        if self.phase == "merging":
            return []
        asked = self._checked(self.transfers.stalled(self.present, now))
        silent = (c for c in asked if isinstance(c, SendReply) and c.reply.version == self.version)
        return asked + self._invitations(c.device for c in silent if c.device in self.invited)

    def _checked(self, commands: list[Command]) -> list[Command]:
        """The same commands; no round ends before what they check is decided on."""
        self.checking |= {command.device for command in commands if isinstance(command, Check)}
        return commands

    def _stored(self, event: Stored, now: float) -> list[Command]:
        device, report = event.device, event.report
        self.checking.discard(device)
        self.stored[device] = self.accepted[device] = report
        self.fresh[device] = event.norm
        self.eligibility.well(device)
        self._cut_off(now)
        return [SendReply(device, Reply("accepted", report.version))]

    def _cut_off(self, now: float) -> None:
        """Once most have answered it is known what a turn takes: the others get some times that."""
        most = math.ceil(round(MOST_SWIFT * len(self.invited.keys() - self.failed), 6))
        known = self.cutoff < math.inf or len(self.stored.keys() & self.invited.keys()) < most
        if self.config.slack and self.config.mode == "synchronous" and not known:
            self.cutoff = self.opened + max(LEAST_WAIT, self.config.slack * (now - self.opened))

    def _bad(self, device: str, reason: str, version: str, now: float) -> list[Command]:
        version = version or self.version
        self.checking.discard(device)
        quarantined = self.eligibility.refused(device, now)
        return self._refuse(device, version, reason, quarantined)

    def _refuse(self, device: str, version: str, reason: str, quarantined: bool) -> list[Command]:
        self.failed.add(device)
        self.refused.add(device)
        return [
            Note(f"update refused{', now in quarantine' * quarantined}: {reason}", device),
            Discard(device, version),
            Refuse(device, version, reason, quarantined),
            SendReply(device, Reply("refused", version, reason)),
        ]

    def _revoked(self, device: str, reason: str, now: float) -> list[Command]:
        """Refuse an update that was accepted: no version can be made with it."""
        report = self.stored.pop(device, None) or self.accepted.get(device)
        if report is None:
            return []
        self.accepted.pop(device, None)
        self.fresh.pop(device, None)
        self.eligibility.quarantine(device, now)
        return self._refuse(device, report.version, reason, quarantined=True)

    def limit(self, start: float) -> float:
        """The longest change that an update may make; `start`: the norm of the model itself."""
        return norm_limit(self.norms.values(), self.facts.norm_factor, start, len(self.known))

    def _outliers(self, now: float) -> list[Command]:
        """Refuse changes that are too long beside the others of this round.

        The first of a run are judged only here: before, nothing was known of the fleet.
        """
        norms = {**self.norms, **self.fresh}
        limit = norm_limit(norms.values(), self.facts.norm_factor, math.inf, len(self.known))
        found = [(d, norm) for d, norm in sorted(self.fresh.items()) if norm > limit]
        return [c for d, norm in found for c in self._revoked(d, outlier(norm, limit), now)]

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
        waiting = self._awaited - self.eligibility.resting.keys()
        return [self._remember(), *self._invitations(waiting & self.present.keys())]

    @property
    def _awaited(self) -> set[str]:
        """Devices that were asked and have neither answered nor failed."""
        return self.invited.keys() - self.stored.keys() - self.failed

    # Rounds

    def _advance(self, now: float) -> list[Command]:
        if self.phase == "waiting" and (self.version in self.memory.asked or self._ready(now)):
            return self._open(now) + self._advance(now)
        if self.phase != "open" or self.checking:
            return []  # what is being checked came in time, and must not be acknowledged in vain
        if self._over(now):
            return self._close(now)
        short = len(self.stored) < self.config.quorum
        return self._extend(now) if now >= self.deadline and short else []

    def _ready(self, now: float) -> bool:
        """Whether a round can begin: enough are there, and enough of them may be asked.

        Who rests or is in quarantine is there: else one device could hold all others up.
        """
        there = sum(self.eligibility.enough(status) for status in self.present.values())
        return there >= self.config.min_devices and len(self._fit(now)) >= self.config.quorum

    def _fit(self, now: float) -> list[str]:
        return [d for d, status in self.present.items() if self.eligibility.fit(d, status, now)]

    def _open(self, now: float) -> list[Command]:
        """Begin a round, or go on with the one that an earlier process had begun."""
        begun, self.memory = self.memory.asked.get(self.version, {}), Recalled()
        chosen = begun or {d: self.present[d].examples for d in self._choose(self._fit(now))}
        self.invited = dict(chosen)
        self.failed = self._sitting_out(now)
        self.leases.begin(self.invited, now)
        self.phase, self.opened = "open", now
        self.deadline, self.cutoff = now + self.config.deadline, math.inf
        return self._ask(self._awaited & self.present.keys())

    def _sitting_out(self, now: float) -> set[str]:
        """Of those whom the round has asked: who was put in quarantine since."""
        return {device for device in self.invited if self.eligibility.out(device, now)}

    def _choose(self, fit: list[str]) -> list[str]:
        heard = {device: round_of(report.version) for device, report in self.accepted.items()}
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
        announced = RoundOpened(self.round, tuple(sorted(self.invited)))
        return [self._remember(), announced, *self._invitations(devices)]

    def _invitations(self, devices: Iterable[str]) -> list[Command]:
        return [Invite(device, self.round, self.version) for device in sorted(devices)]

    def _remember(self) -> Remember:
        self.counted = len(self.known)
        asked = dict(sorted(self.invited.items()))
        return Remember(self.round, self.version, asked, tuple(sorted(self.known)))

    def _over(self, now: float) -> bool:
        """Enough have answered, all have, or the deadline has come with a quorum."""
        if len(self.stored) < self.config.quorum:
            return False
        waiting = any(self.leases.valid(device, now) for device in self._awaited)
        return self._answered >= self._wanted or not waiting or self._expired(now)

    @property
    def _answered(self) -> int:
        return len(self.stored.keys() & self.invited.keys())

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
        return now >= min(self.deadline, self.cutoff) + (self.config.grace if sending else 0.0)

    def _extend(self, now: float) -> list[Command]:
        """The deadline came without a quorum: keep what has come, ask all who are there again."""
        self.deadline = now + self.config.deadline
        judge = self._judge()
        again = set(self._fit(now)) - self.stored.keys() - self.transfers.open.keys()
        silent = self._missed(now)  # they are asked once more, but not in the next round
        self.failed, self.refused = self._sitting_out(now), set()
        self.invited |= {device: self.present[device].examples for device in again}
        note = Note(
            f"round {self.round + 1}: deadline with {len(self.stored)} of "
            f"{self.config.quorum} updates; asking {len(again)} devices again"
        )
        return [note, *silent, *self._ask(again), judge]

    def _close(self, now: float) -> list[Command]:
        """Merge what has come; who is still sending hears of it once that is done."""
        refused = self._outliers(now)
        if len(self.stored) < self.config.quorum:
            return refused
        missed = self._missed(now) if self._answered < self._wanted else []
        reports = {device: self.stored[device] for device in sorted(self.stored)}
        self.phase, self.deadline = "merging", math.inf
        merge = Merge(self.round, reports, dict(self.fresh), self.counted)
        return [*refused, *missed, self._judge(), merge]

    def _missed(self, now: float) -> list[Command]:
        """Those whom the round has waited for in vain lose their place for a while.

        Not who rests already, after a failure: nobody has asked it.
        """
        if self.config.mode == "buffered":
            return []
        took = now - self.opened
        silent = sorted(d for d in self._awaited if self.eligibility.resting.get(d, now) <= now)
        rests = {device: self.eligibility.missed(device, took, now) for device in silent}
        return [Note(f"did not answer, rests for {s:.0f} s", d) for d, s in rests.items()]

    def _judge(self) -> Judge:
        told = {d: report.scalars for d, report in self.stored.items()}
        known = {d: scalars[ACCURACY] for d, scalars in told.items() if ACCURACY in scalars}
        hostile = self.refused | self.eligibility.quarantined.keys()
        failed = {
            d for d in self.invited if d in self.failed or d in self.eligibility.tries
        } - hostile
        return Judge(self.version, len(self.invited.keys() - hostile), len(failed), known)

    def _give_up(self, devices: Iterable[str]) -> list[Command]:
        """Their updates are of no use any more, and need not be sent to the end."""
        dropped = {device: self.transfers.open.pop(device).report for device in sorted(devices)}
        return [
            SendReply(device, Reply("late", report.version, "the round is over"))
            for device, report in dropped.items()
        ]

    def _merged(self, event: MergeDone) -> list[Command]:
        self.norms |= {d: self.fresh[d] for d in event.devices if d in self.fresh}
        return self._go_on(event.version)

    def _rolled_back(self, event: RolledBack) -> list[Command]:
        """Leave the round as it is: what was trained in it came from a version that is given up."""
        reason = f"the run goes back: {event.reason}"
        dropped: list[Command] = []
        for device, report in sorted(self.stored.items()):
            self.accepted.pop(device, None)
            refused = Refuse(device, report.version, reason, quarantined=False)
            dropped += [Discard(device, report.version), refused]
        on = self._go_on(event.version)
        self.recent, self.asked = {}, {}  # no late update of what is given up is taken
        return [*dropped, *self._give_up([*self.transfers.open]), *on]

    def _go_on(self, version: str) -> list[Command]:
        """From one version to the next."""
        self.recent[self.version] = self.round
        self.asked[self.version] = self.invited
        self.round += 1
        oldest = self.round - self.config.max_staleness
        self.recent = {v: number for v, number in self.recent.items() if number >= oldest}
        self.asked = {v: asked for v, asked in self.asked.items() if v in self.recent}
        self.version = version
        self.invited, self.failed, self.refused, self.stored = {}, set(), set(), {}
        self.fresh, self.cutoff = {}, math.inf
        self.phase = "waiting" if self.round < self.config.count else "done"
        stale = [d for d, t in self.transfers.open.items() if self._late(t.report.version)]
        return [*self._give_up(stale), *([RunFinished()] if self.phase == "done" else [])]
