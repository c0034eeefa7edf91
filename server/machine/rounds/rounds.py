"""The coordinator's rounds as a state machine without I/O: events in, commands out.

The MQTT shell and the tests drive the same machine. It never looks at a clock: `now` comes in.
`participants` has the states of a device, `presence` and `updates` what leads from one to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fededge.config import RoundsConfig
from fededge_server.machine.events import (
    Bad,
    Command,
    Discard,
    Evaluate,
    Event,
    Full,
    Merge,
    MergeDone,
    Note,
    PublishState,
    RefusalWritten,
    Refuse,
    Remembered,
    ReportCame,
    Retire,
    RolledBack,
    RoundOpened,
    RunFinished,
    StatusCame,
    Stored,
    Tick,
    TimeOfDay,
    UpdateChunkCame,
)
from fededge_server.machine.facts import Recalled, RunFacts
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.eligibility import Eligibility
from fededge_server.machine.fleet.participants import Participant, Participants
from fededge_server.machine.fleet.parts import OUT, Part
from fededge_server.machine.presence import PresenceTracker
from fededge_server.machine.recovery import recover
from fededge_server.machine.rounds.invitations import Invitations
from fededge_server.machine.rounds.round_end import RoundEnd
from fededge_server.machine.rounds.round_state import RoundState, RoundsView
from fededge_server.machine.rounds.schedule import Schedule
from fededge_server.machine.updates.updates import Updates

__all__ = ["Rounds"]

TAKEN = frozenset(Part) - {Part.IDLE, Part.SENDING}
"""Parts that end with a round: a late update that is being sent may still be taken."""


class Rounds:
    """Opens, extends and closes rounds. `now`: the time at which the process starts."""

    def __init__(
        self,
        facts: RunFacts,
        config: RoundsConfig,
        number: int,
        version: str,
        recalled: Recalled | None = None,
        now: float = 0.0,
    ) -> None:
        self.config = config
        self.eligibility = Eligibility(config)
        self.participants = Participants(self.eligibility)
        self.participants.census.advance(now)
        self.state = RoundState(facts, config, number, version, self.participants)
        self.invitations = Invitations(self.state, self.eligibility)
        self.presence = PresenceTracker(self.state, self.eligibility, self.invitations)
        self.updates = Updates(self.state, self.eligibility)
        self.end = RoundEnd(self.state, self.eligibility, self.updates)
        if config.over(number):
            self.state.phase = "done"
        known = recalled or Recalled()
        self.begun = recover(self.state, self.updates, known, now)
        self.schedule = Schedule.resumed(self.state, known, now)

    # For the shell

    def view(self, now: float) -> RoundsView:
        return self.state.view(now)

    @property
    def between_rounds(self) -> bool:
        """True if no round is open, and an earlier process had begun none."""
        return self.begun is None and self.state.phase not in ("open", "merging")

    def limit(self, start: float) -> float:
        """The longest change that an update may make; `start`: the norm of the model itself."""
        return self.end.limit(start)

    # Events

    def handle(self, event: Event, now: float) -> list[Command]:
        self.participants.census.advance(now)
        commands = self._handle(event, now)
        if isinstance(event, UpdateChunkCame | RefusalWritten | Remembered):
            return commands  # none decides anything by itself, and there are many chunks
        following = self.advance(now)
        told = any(isinstance(command, RoundOpened | PublishState) for command in following)
        if isinstance(event, MergeDone | RolledBack) and not told:
            commands.append(PublishState())
        return commands + following

    def _handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case StatusCame():
                return self.presence.status(event, now)
            case ReportCame():
                return self.updates.report(event, now)
            case Stored():
                commands = self.updates.stored(event, now)
                self.end.cut_off(now)
                return commands
            case Bad():
                return self.updates.bad(event, now)
            case RefusalWritten():
                self.updates.written(event)
                return []
            case Remembered():
                self.state.remembered(event)
                return []
            case MergeDone():
                return self._merged(event, now)
            case RolledBack():
                return self._rolled_back(event, now)
            case Full():
                return self._full(event.full, now)
            case TimeOfDay():
                self.schedule.tell_time(event)
                return []
            case Tick():
                stalled = self.updates.stalled(now)
                return self.presence.expire() + stalled + self.presence.retry()
            case UpdateChunkCame():
                return self.updates.chunk(event, now)

    def _full(self, full: bool, now: float) -> list[Command]:
        """Take nothing while the disk is full; then ask for all that the round still needs.

        The rest of the batch that found the disk full was dropped, whatever it was.
        """
        changed, self.state.full = full != self.state.full, full
        if full:
            text = "the disk is full: nobody is asked, and updates are not taken"
            note = [Note(text)] if changed else []
            return [PublishState(), *self.updates.drop_all(), *note]
        if not changed:
            return []
        again = [Note("there is space again"), *self.updates.write_again()]
        if self.state.phase == "open":
            waiting = [one for one in self._present() if one.backoff_until is None]
            return [*again, *self._ask(waiting)]
        merge = self._merge(now) if self.state.phase == "merging" else []
        return [PublishState(), *again, *merge]

    # A round begins

    def advance(self, now: float) -> list[Command]:
        """Open or close a round, or extend it, if it is time."""
        state = self.state
        if state.changing and self.between_rounds:
            return []
        if state.phase in ("waiting", "resting"):
            rest = self.schedule.follow(now) if self.begun is None else []
            begins = self.begun is not None or (not state.resting and self._ready)
            return [*rest, *(self._open(now) + self.advance(now) if begins else [])]
        if state.phase != "open" or self.participants.doing(Part.CHECKING):
            return []  # what is being checked came in time, and must not be acknowledged in vain
        if self.end.over(now):
            return self._close(now)
        short = self.participants.count(Part.STORED) < self.config.quorum
        return self._extend(now) if now >= state.deadline and short else []

    @property
    def _ready(self) -> bool:
        """True if a round can begin: enough devices are there, and enough of them may be asked.

        A device that rests, or is in backoff or quarantine, is there: else it could hold all
        others up.
        """
        there = self.participants.count(Group.THERE) >= self.config.min_devices
        if self.state.paused or not there:
            return False
        return self.participants.count(Group.ELIGIBLE) >= self.config.quorum

    def _open(self, now: float) -> list[Command]:
        """Begin a round, or go on with the one that an earlier process had begun."""
        begun, self.begun = self.begun, None
        if begun:
            self.invitations.resume(len(begun))
        for device, examples in (begun or self.invitations.first()).items():
            one = self.participants.of(device)
            one.asked = examples
            one.written = examples if begun else None
            one.heard = now if one.heard is None else one.heard
            if one.part is Part.IDLE:
                one.move(one.first_part(now))
        self.state.phase, self.state.opened = "open", now
        self.state.deadline, self.state.cutoff = now + self.config.deadline, math.inf
        return self._ask(self._present())

    def _present(self) -> list[Participant]:
        """The devices that the round waits for and that may be asked again."""
        return [one for one in self.participants.where(Group.AWAITED) if one.present]

    def _ask(self, devices: Iterable[Participant]) -> list[Command]:
        announced = RoundOpened(self.state.round, tuple(self.participants.invited))
        return [*self.state.remember(), announced, *self.state.invitations(devices)]

    # A round ends

    def _extend(self, now: float) -> list[Command]:
        """The deadline came without a quorum: keep what has come, ask all who are there again."""
        self.state.deadline = now + self.config.deadline
        judge, number = self.end.judge(now), self.participants.count(Part.STORED)
        busy = (Part.STORED, Part.SENDING)
        again = [one for one in self.participants.where(Group.ELIGIBLE) if one.part not in busy]
        silent = self.end.missed(now)  # they are asked once more, but not in the next round
        for one in self.participants.doing(*OUT):
            one.move(one.part_after_extension(now))
        for one in again:
            assert one.status is not None
            one.asked = one.status.examples
            one.move(Part.INVITED)
        note = Note(
            f"round {self.state.round + 1}: deadline with {number} of "
            f"{self.config.quorum} updates; asking {len(again)} devices again"
        )
        return [note, *silent, *self._ask(again), judge]

    def _close(self, now: float) -> list[Command]:
        """Merge what has come; devices that are still sending hear of it once that is done."""
        refused = self.end.outliers(now)
        if self.participants.count(Part.STORED) < self.config.quorum:
            return refused
        missed = self.end.missed(now) if self.end.answered < self.end.wanted else []
        self.state.phase, self.state.deadline = "merging", math.inf
        return [*refused, *missed, *self._merge(now)]

    def _merge(self, now: float) -> list[Command]:
        norms = {one.device: one.change for one in self.participants.doing(Part.STORED)}
        reports, counted = self.participants.stored, self.state.counted
        return [self.end.judge(now), Merge(self.state.round, reports, norms, counted)]

    # From one version to the next

    def _merged(self, event: MergeDone, now: float) -> list[Command]:
        commands: list[Command] = []
        refused = {d: why for d, why in event.refused.items() if d in self.participants}
        for device, reason in refused.items():  # without those that were forgotten meanwhile
            revoked = self.updates.revoke(self.participants[device], reason, now)
            commands += [c for c in revoked if not isinstance(c, Refuse)]  # it is in the journal
        merged = frozenset(event.devices)
        for one in self.participants.doing(Part.STORED):
            assert one.stored is not None
            commands.append(Discard(one.device, one.stored.version))
            if one.device in merged:
                one.merged_change = one.change
                one.trained = self.state.asked_for(one, one.stored.version)
        self.schedule.new_version(event.score, now)
        return [*commands, *self._go_on(event.version), Evaluate(event.version)]

    def _rolled_back(self, event: RolledBack, now: float) -> list[Command]:
        """Give the round up: what was trained in it came from a version that is given up."""
        reason = f"the run goes back: {event.reason}"
        refused = self.updates.withdraw(reason)
        late = self.updates.give_up(self.participants.doing(Part.SENDING))
        on = self._go_on(event.version, folds=False)
        self.schedule.restart(now)
        return [*on, *refused, *late]

    def _go_on(self, version: str, folds: bool = True) -> list[Command]:
        """Begin with the next version; `folds`: late updates for this one can still be taken."""
        state, old = self.state, self.state.version
        state.recent[old], state.asked[old] = state.round, self.participants.invited
        state.round += 1
        oldest = state.round - self.config.max_staleness if folds else math.inf
        state.recent = {v: number for v, number in state.recent.items() if number >= oldest}
        state.asked = {v: asked for v, asked in state.asked.items() if v in state.recent}
        state.version, state.cutoff = version, math.inf
        state.phase = "done" if self.config.over(state.round) else "waiting"
        for one in self.participants.where(Group.INVITED):
            one.asked = one.written = None
        for one in self.participants.doing(*TAKEN):
            one.move(Part.IDLE)
        late = self.updates.give_up(filter(self._too_late, self.participants.doing(Part.SENDING)))
        keep = frozenset({version, *(state.recent if self.config.folds else ())})
        finished = [RunFinished()] if state.phase == "done" else []
        return [Retire(old, keep), *late, *finished]

    def _too_late(self, one: Participant) -> bool:
        return one.transfer is not None and bool(self.state.too_late(one.transfer.report.version))
