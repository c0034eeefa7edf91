"""Personal models reach the fleet in stages: a state machine without I/O, beside the rounds.

A stage lasts a while. If too many of its devices say that the new models are bad or worse, the
rollout is aborted, and they go back to what they had; else the next stage begins. Time comes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from fededge.config import RolloutConfig
from fededge.federated.rollout import place
from fededge.wire.messages import Rollout, Status
from fededge_server.machine.events import Note, PublishState, StatusCame, Tick

__all__ = ["Plan", "PlanKept", "Planned", "RoundsDone", "Staging"]

FAILED = frozenset({"rejected", "bad", "rolled-back"})

UNANSWERED = 120.0
"""Seconds beyond the soak for devices without an answer: they may still export their models."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rollout as the journal keeps it: what devices were told, and the stage (-1: none)."""

    rollout: Rollout
    stage: int = -1

    @classmethod
    def initial(cls, rounds_done: int) -> Plan:
        """Before the first rollout: what was trained until now is for everybody."""
        return cls(Rollout(0, rounds_done, rounds_done, rounds_done, 0.0))


@dataclass(frozen=True)
class RoundsDone:
    """An event: so many rounds of the run are done, and their personal models made."""

    count: int


@dataclass(frozen=True)
class Planned:
    """A command: write this plan down, then tell the devices."""

    plan: Plan


@dataclass(frozen=True)
class PlanKept:
    """An event: the plan is on disk, and counts from now on."""

    plan: Plan


Event = StatusCame | RoundsDone | PlanKept | Tick
Command = Planned | PublishState | Note


@dataclass
class Staging:
    """The rollout: its stage, and what the devices say to it.

    After a restart a stage lasts its full time again: too long is safe. `places` are those of the
    devices in this rollout.
    """

    config: RolloutConfig
    run: str
    plan: Plan
    known: set[str] = field(default_factory=set)
    done: int = 0
    said: dict[str, Status] = field(default_factory=dict)
    since: float | None = None
    places: dict[tuple[int, str], float] = field(default_factory=dict)

    @property
    def rollout(self) -> Rollout:
        return self.plan.rollout

    @property
    def idle(self) -> bool:
        """True if no rollout is on, and nothing waits to be rolled out."""
        return self.plan.stage < 0 and self.done <= self.rollout.until

    def handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case StatusCame(device, status):
                if status.device == device and status.online:  # a last will knows of no model
                    self.known.add(device)
                    self.said[device] = status
                if self.plan.stage >= 0 and self._answer(device) not in FAILED:
                    return []  # only time leads on: else every status would count the fleet
            case RoundsDone(count):
                self.done = count
            case PlanKept(plan):
                self.plan, self.since = plan, now
                return [PublishState()]
        if self.plan.stage < 0:
            return self._begin()
        if self.since is None:
            self.since = now
        return self._judge(now)

    def _begin(self) -> list[Command]:
        """Roll out the models of all rounds that are done and not yet decided on."""
        if self.done <= self.rollout.until or not self.known:
            return []
        number = self.rollout.number + 1
        return self._enter(0, number=number, until=self.done)

    def _judge(self, now: float) -> list[Command]:
        staged = self._staged()
        answers = [self._answer(device) for device in staged]
        failed = sum(answer in FAILED for answer in answers)
        assert self.since is not None
        if failed > self.config.abort * len(staged):
            return self._abort(failed, len(staged))
        if now - self.since < self.config.soak:
            return []
        if "promoted" not in answers:
            patient = "" in answers and now - self.since < self.config.soak + UNANSWERED
            return [] if patient else self._drop()
        if self.plan.stage + 1 < len(self.config.stages):
            return self._enter(self.plan.stage + 1)
        return self._complete()

    def _staged(self) -> list[str]:
        """The known devices that the rollout has reached."""
        number, cut = self.rollout.number, self.rollout.cut
        return [device for device in self.known if self._place(number, device) < cut]

    def _place(self, number: int, device: str) -> float:
        found = self.places.get((number, device))
        if found is None:
            found = self.places[number, device] = place(self.run, number, device)
        return found

    def _answer(self, device: str) -> str:
        status = self.said.get(device)
        ours = status is not None and status.rollout == self.rollout.number
        return status.model_state if status is not None and ours else ""

    def _enter(self, stage: int, **changes: int) -> list[Command]:
        rollout = msgspec.structs.replace(self.rollout, **changes)
        cut = self._cut(self.config.stages[stage], rollout.number)
        share = self.config.stages[stage]
        text = f"stage {stage + 1} of {len(self.config.stages)}, {share:.0%} of the devices"
        return self._plan(stage, text, msgspec.structs.replace(rollout, cut=cut))

    def _cut(self, share: float, number: int) -> float:
        """The place with exactly this share of the known devices, and at least one, below it."""
        self.places = {key: where for key, where in self.places.items() if key[0] == number}
        places = sorted(self._place(number, device) for device in self.known)
        wanted = math.ceil(round(share * len(places), 6))
        return places[wanted] if wanted < len(places) else 1.0

    def _abort(self, failed: int, staged: int) -> list[Command]:
        """The rounds of this rollout become a gap: nobody uses what was trained in them."""
        text = f"aborted: {failed} of {staged} devices say that the models are bad or worse"
        gap = msgspec.structs.replace(self.rollout, after=self.rollout.until, cut=0.0)
        return self._plan(-1, text, gap)

    def _drop(self) -> list[Command]:
        """Give up without blame: nobody in the first stages had a model of these rounds."""
        text = "dropped: no device that it reached has used a new model"
        return self._plan(-1, text, msgspec.structs.replace(self.rollout, cut=0.0))

    def _complete(self) -> list[Command]:
        until = self.rollout.until
        free = msgspec.structs.replace(self.rollout, released=until, after=until, cut=0.0)
        return self._plan(-1, "complete: the models are for everybody", free)

    def _plan(self, stage: int, text: str, rollout: Rollout) -> list[Command]:
        """The plan counts once it is on disk: nobody is told of it before."""
        return [Planned(Plan(rollout, stage)), Note(f"rollout {rollout.number}: {text}")]
