"""The tables of transitions: random runs use every row, and no other move is possible."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fededge.wire import chunks
from fededge.wire.messages import Reply, State, TaskMessage
from fededge_agent.machine import commands, events
from fededge_agent.machine.agent import AgentMachine
from fededge_agent.machine.download import DOWNLOAD, DownloadState
from fededge_agent.machine.events import Pending
from fededge_agent.machine.export_schedule import EXPORT, ExportState
from fededge_agent.machine.preparation import PREPARATION, PreparationState
from fededge_agent.machine.rest import REST, RestState
from fededge_agent.machine.tables import transitions_table
from fededge_agent.machine.transitions import StateMachine
from fededge_agent.machine.turn import TURN, TurnState
from tests.device_agent.machine.test_agent import MODEL, STATE, V0, V1, V2

STATES = [
    msgspec.structs.replace(STATE, run=run, method=method, version=version, round=number)
    for run in ("run", "other")
    for method in ("fedavg", "fedprox(mu=0.1)")
    for number, version in enumerate((V0, V1, V2))
]
CHUNKS = [chunks.pack(MODEL, STATE.manifest, index) for index in range(3)]
SEEDS, STEPS = 400, 120


class Walk:
    """A machine among random messages, with a worker and a disk that answer or fail."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.states = self.rng.sample(STATES, 3)
        self.machine = AgentMachine(self.rng.choice(("", V0)))
        self.jobs: list[State | events.Event] = []
        self.now = 0.0

    def run(self) -> None:
        for _ in range(STEPS):
            self.now += self.rng.choice((0.1, 5.0, 400.0))
            self.feed(self.message())
            if self.jobs and self.rng.random() < 0.5:
                self.feed(self.jobs.pop(0))

    def feed(self, event: Any) -> None:
        batch = self.machine.handle(event, self.now)
        if self.machine.rest.resting:
            begun = (commands.Prepare, commands.Follow, commands.CheckModel, commands.Train)
            assert not [c for c in batch if isinstance(c, begun) and not self.follows_again(event)]
        for result in self.results(batch):
            self.feed(result)
        assert self.machine.turn.training or len(self.jobs) <= 1

    def follows_again(self, event: Any) -> bool:
        """True for events that let a download which is under way go on."""
        return isinstance(event, events.Tick | events.LinkUp | events.ModelChunkCame)

    def message(self) -> Any:
        rng, machine = self.rng, self.machine
        state = machine.assignment.state or self.states[0]
        ours = machine.turn.pending or machine.turn.last_accepted or Pending("run", V0)
        kind: Any = rng.choice(("accepted", "late", "refused", "resend"))
        messages = [
            events.StateCame(rng.choice(self.states)),
            events.TaskCame(TaskMessage("box", state.run, state.version)),
            events.ModelChunkCame(state.version, rng.choice(CHUNKS)),
            events.ReplyCame(Reply(kind, ours.version, run=ours.run, chunks=(0,))),
            events.LinkUp(rng.random() < 0.5),
            events.Tick(),
            events.GateClosed("why"),
            events.GateOpened(),
            events.CauseGone(),
        ]
        return rng.choices(messages, [2, 3, 6, 2, 1, 1, 0.5, 1, 0.5])[0]

    def results(self, batch: list[commands.Command]) -> Iterator[events.Event]:
        """The events that a batch leads to; a full disk drops the rest of it."""
        for command in batch:
            full = self.rng.random() < 0.1
            match command:
                case commands.Prepare(state):
                    unable = self.rng.random() < 0.2
                    cause = self.rng.choice([*events.Cause])
                    failed = events.Unable(state, "why", cause)
                    self.jobs.append(failed if unable else events.Prepared(state))
                case commands.Train(state):
                    self.jobs.append(self.outcome(state))
                case commands.ExpectModel() | commands.KeepModelChunk() if full:
                    yield events.DownloadFailed("full")
                    return
                case commands.CheckModel(version):
                    spoiled = self.rng.random() < 0.3
                    yield (
                        events.DownloadFailed("full")
                        if full
                        else events.Spoiled(version, "rot")
                        if spoiled
                        else events.Fetched(version)
                    )
                case commands.SendUpdate() if full:
                    yield events.Unsent("full")
                    return
                case commands.SendUpdate((0,)) if self.rng.random() < 0.5:
                    yield events.TurnLost()
                case commands.Settle():
                    unsettled = self.rng.random() < 0.3
                    yield events.Unsettled("full") if unsettled else events.Settled(command)

    def outcome(self, state: State) -> events.Event:
        trained = events.Trained(Pending(state.run, state.version))
        others: list[events.Event] = [
            events.TurnFailed("why"),
            events.Abandoned(),
            events.Spoiled(state.version, "rot"),
        ]
        return trained if self.rng.random() < 0.7 else self.rng.choice(others)


def test_random_runs_use_every_transition_and_need_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: set[tuple[object, str, object]] = set()
    move = StateMachine._move

    def watched(self: StateMachine[Any], cause: str, target: Any) -> None:
        used.add((self.state, cause, target))
        move(self, cause, target)

    monkeypatch.setattr(StateMachine, "_move", watched)
    for seed in range(SEEDS):
        Walk(seed).run()
    assert {*REST, *PREPARATION, *DOWNLOAD, *TURN} - used == set()


@pytest.mark.parametrize(
    ("rows", "states"),
    [
        (REST, RestState),
        (PREPARATION, PreparationState),
        (DOWNLOAD, DownloadState),
        (TURN, TurnState),
        (EXPORT, ExportState),
    ],
)
def test_every_state_can_be_left_and_no_row_comes_twice(rows: Any, states: Any) -> None:
    assert {source for source, _, _ in rows} == {*states}
    assert len({*rows}) == len(rows)


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    machine = AgentMachine()
    with pytest.raises(AssertionError, match="no transition from UNPREPARED to PREPARED"):
        machine.handle(events.Prepared(STATE), 0.0)


def test_the_tables_are_written_as_markdown() -> None:
    text = transitions_table()
    assert text.startswith("| rest | cause | next state |\n|---|---|---|\n| awake |")
    tables = (REST, PREPARATION, DOWNLOAD, TURN, EXPORT)
    assert text.count("\n| ") == sum(map(len, tables)) + len(tables) - 1
    assert "| settling | Unsettled | awaiting answer |" in text
