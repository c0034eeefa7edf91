"""Events of any kind in any order: the rounds refuse them or take them, and never raise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fededge.config import RoundsConfig
from fededge_server.machine.events import (
    Bad,
    Check,
    Full,
    Merge,
    MergeDone,
    RolledBack,
    Stored,
    Tick,
)
from fededge_server.machine.facts import Recalled
from fededge_server.machine.fleet.order_effects import OrderEffects
from fededge_server.machine.fleet.orders import (
    DrainOrder,
    ForgetOrder,
    OrderGiven,
    PauseOrder,
    QuarantineOrder,
    ReleaseOrder,
    RestOrder,
    ResumeOrder,
)
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import PARTS, Part
from fededge_server.machine.rounds.rounds import Rounds
from tests.server.machine.test_rounds import (
    FACTS,
    OTHER,
    V0,
    V1,
    chunk,
    report,
    status,
    with_update,
)

DEVICES = "abcdef"
CONFIGS: list[dict[str, Any]] = [
    {"min_devices": 2},
    {"min_devices": 3, "quorum": 2, "participants": 3, "over_select": 1.3, "grace": 5.0},
    {"min_devices": 2, "late": "fold", "participants": 3, "quarantine_after": 1},
    {"min_devices": 2, "mode": "buffered", "buffer": 2},
    {"min_devices": 2, "quorum": 2, "retries": 1, "quarantine_seconds": 30.0},
    {"min_devices": 2, "share": 0.5, "over_select": 1.5, "lease": 1e6},
]


class Anything:
    """Draws events, answers the commands that need an answer, and restarts the machine."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        rules = {"count": 10**6, "deadline": 60.0, **CONFIGS[seed % len(CONFIGS)]}
        self.config = RoundsConfig(**rules)
        self.machine = Rounds(FACTS, self.config, 0, V0)
        self.now, self.pending = 0.0, list[Any]()
        self.versions = [V0]

    def step(self) -> None:
        self.now += self.draw.choice((0.0, 0.1, 1.0, 7.0, 40.0, 200.0))
        for command in self._handled(self._event()):
            if isinstance(command, Check | Merge):
                self.pending.append(command)

    def _handled(self, event: Any) -> Sequence[Any]:
        if isinstance(event, OrderGiven):
            return OrderEffects(self.machine, None).handle(event, self.now)
        return self.machine.handle(event, self.now)

    def _order(self, device: str) -> OrderGiven:
        orders: list[Any] = [DrainOrder(device), RestOrder(device, 30.0), QuarantineOrder(device)]
        orders += [ForgetOrder(device), PauseOrder(), *[ReleaseOrder(device)] * 4]
        return OrderGiven(self.draw.choice([*orders, *[ResumeOrder()] * 3]))

    def _event(self) -> Any:
        if self.pending:  # the shell carries commands out before it takes what comes next
            return self._answer(self.pending.pop(0))
        device, draw = self.draw.choice(DEVICES), self.draw
        version = draw.choice([*self.versions[-2:], *self.versions[-1:] * 4, V1])
        kinds: dict[str, Callable[[], Any]] = {
            "ready": lambda: status(device),
            "restarted": lambda: status(device, instance=f"i{draw.random()}"),
            "offline": lambda: status(device, online=False, activity="offline"),
            "failed": lambda: status(device, activity="failed", problem="x"),
            "unable": lambda: status(device, activity="unable", problem="x"),
            "resting": lambda: status(device, activity="resting", problem="x"),
            "training": lambda: status(device, activity="training"),
            "stranger": lambda: status(device, layout=OTHER),
            "claims": lambda: status(device, examples=draw.choice((0, 5, 10**9))),
            "report": lambda: report(device, version),
            "update": lambda: with_update(device, version, draw.random() < 0.2),
            "odd report": lambda: report(device, version, scalars={"examples": 1e300}),
            "chunk": lambda: chunk(device, draw.randrange(3), version),
            "tick": Tick,
            "full": lambda: Full(draw.random() < 0.3),
            "rollback": self._rollback,
            "order": lambda: self._order(device),
        }
        names = [*kinds, *["ready", "report", "report", "chunk", "chunk", "chunk", "tick"] * 6]
        names += ["resting"] * 2 + ["update"] * 6 + ["order"] * 3
        return kinds[draw.choice(names)]()

    def _rollback(self) -> Any:
        return RolledBack(self._next_version(), "a test")

    def _next_version(self) -> str:
        self.versions.append(f"{self.machine.state.round + 1:06d}-{self.draw.getrandbits(64):016x}")
        return self.versions[-1]

    def _answer(self, command: Check | Merge) -> Any:
        draw = self.draw
        if draw.random() < 0.1:
            self.pending.clear()  # a full disk ends the batch
            return Full(True)
        if isinstance(command, Check):
            if draw.random() < 0.3:
                return Bad(command.device, "not finite", command.report.version)
            return Stored(command.device, command.report, draw.choice((0.0, 1.0, 1e9)))
        devices = sorted(command.reports)
        bad = {d: "culprit" for d in devices if draw.random() < 0.2}
        return MergeDone(self._next_version(), tuple(d for d in devices if d not in bad), bad)

    def restart(self) -> None:
        """As the journal would have it: who was asked, accepted, is in quarantine, was sending."""
        state, everyone = self.machine.state, self.machine.participants
        sending = {
            n: (o.transfer.report, frozenset[int]()) for n, o in everyone.items() if o.transfer
        }
        recalled = Recalled(
            known=frozenset(n for n, o in everyone.items() if o.known),
            asked={state.version: everyone.invited, **state.asked},
            accepted={n: o.accepted for n, o in everyone.items() if o.accepted},
            stored=frozenset(everyone.stored),
            recent=dict(state.recent),
            norms={n: o.change for n, o in everyone.items()},
            quarantined=frozenset(n for n, o in everyone.items() if o.quarantined(self.now)),
            coming=sending,
            standings={n: (o.standing, o.rested_until - self.now) for n, o in everyone.items()},
            paused=state.paused,
        )
        self.pending.clear()
        number, version = state.round, state.version
        self.machine = Rounds(FACTS, self.config, number, version, recalled, self.now)


@pytest.mark.parametrize("seed", range(60))
def test_no_sequence_of_events_leads_to_a_move_that_is_not_in_the_table(seed: int) -> None:
    world = Anything(seed)
    for _ in range(400):
        world.step()
        if world.draw.random() < 0.01:
            world.restart()


def test_random_events_reach_nearly_all_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[Part, Part]] = set()
    real = Participant.move

    def move(self: Participant, part: Part) -> None:
        seen.add((self.part, part))
        real(self, part)

    monkeypatch.setattr(Participant, "move", move)
    for seed in range(60):
        world = Anything(seed)
        for _ in range(400):
            world.step()
            if world.draw.random() < 0.01:
                world.restart()
    moves = {(before, after) for before, row in PARTS.items() for after in row}
    assert len(moves & seen) > 0.8 * len(moves), moves - seen
