"""The agent's state machine, event by event."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec
import pytest

from fededge.errors import WireError
from fededge.wire import chunks
from fededge.wire.chunks import Assembly
from fededge.wire.messages import Manifest, Reply, TaskMessage, Training
from fededge_agent.machine.agent import AgentMachine
from fededge_agent.machine.commands import (
    Abandon,
    Announce,
    CheckModel,
    Command,
    ExpectModel,
    Follow,
    KeepModelChunk,
    Note,
    Prepare,
    SendUpdate,
    Settle,
    Train,
    Unfollow,
)
from fededge_agent.machine.download import IncomingModel
from fededge_agent.machine.events import (
    Abandoned,
    Cause,
    CauseGone,
    ClaimCame,
    Fetched,
    LinkUp,
    ModelChunkCame,
    Pending,
    Prepared,
    ReplyCame,
    Settled,
    Spoiled,
    StateCame,
    TaskCame,
    Tick,
    Trained,
    TurnLost,
    Unable,
    Unsettled,
)
from fededge_agent.machine.turn import UNANSWERED
from tests.states import made_state

OLD, V0, V1 = "000000-ffffffffffffffff", "000000-0123456789abcdef", "000001-fedcba9876543210"
V2 = "000002-0123456789abcdef"
ALL = (0, 1, 2)
MODEL = hashlib.shake_128(b"model").digest(2500)
STATE = made_state(version=V0, manifest=chunks.manifest(MODEL, 1024))
NEXT = msgspec.structs.replace(STATE, version=V1, round=1)
OTHER_METHOD = msgspec.structs.replace(STATE, method="fedprox(mu=0.1)", run="other")
MINE = Pending("run", V0)

C = TypeVar("C")


def only(commands: list[Command], kind: type[C]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def task(version: str = V0, run: str = "run") -> TaskCame:
    return TaskCame(TaskMessage("box", run, version))


def chunk(index: int, version: str = V0) -> ModelChunkCame:
    return ModelChunkCame(version, chunks.pack(MODEL, STATE.manifest, index))


def reply(kind: Any, version: str = V0, **fields: Any) -> ReplyCame:
    return ReplyCame(Reply(kind, version, **{"run": "run", **fields}))


class Driven:
    """A machine whose clock the test sets."""

    def __init__(self, **fields: Any) -> None:
        self.machine = AgentMachine(**fields)
        self.now = 100.0

    def doing(self) -> str:
        return self.machine.view.activity

    def __call__(self, *events: Any, at: float | None = None) -> list[Command]:
        self.now = self.now if at is None else at
        return [command for event in events for command in self._led_to(event)]

    def _led_to(self, event: Any) -> list[Command]:
        """Decisions are on disk at once."""
        done: list[Command] = []
        for command in self.machine.handle(event, self.now):
            done.append(command)
            if isinstance(command, Settle):
                done += self._led_to(Settled(command))
        return done


def ready(**fields: Any) -> Driven:
    """LinkUp and prepared, with nothing to do: it holds a model, if an old one."""
    driven = Driven(**{"held": OLD, **fields})
    driven(LinkUp(), StateCame(STATE), Prepared(STATE))
    return driven


def trained(**fields: Any) -> Driven:
    """Has just sent the update of the first version."""
    driven = ready(held=V0, **fields)
    driven(task())
    assert driven.doing() == "training"
    assert driven(Trained(MINE)) == [SendUpdate(attached=True), Announce()]
    return driven


# A turn


def test_a_whole_turn() -> None:
    driven = Driven()
    assert driven(LinkUp()) == [Announce()]
    assert driven(StateCame(STATE)) == [Prepare(STATE)]
    assert driven.doing() == "starting"
    fetch = [ExpectModel(V0, STATE.manifest), Follow(V0, ALL)]
    assert driven(Prepared(STATE)) == [*fetch, Announce()]  # it has no model yet: no task needed
    assert driven.doing() == "fetching"
    assert driven(task()) == []
    assert driven(chunk(2), chunk(0)) == [
        KeepModelChunk(V0, 2048, MODEL[2048:]),
        KeepModelChunk(V0, 0, MODEL[:1024]),
    ]
    last = [
        Unfollow(V0, ALL),
        KeepModelChunk(V0, 1024, MODEL[1024:2048]),
        CheckModel(V0, STATE.manifest),
    ]
    assert driven(chunk(1)) == last
    assert driven.doing() == "fetching"
    assert driven(Fetched(V0)) == [Train(STATE), Announce()]
    assert driven.doing() == "training"
    assert driven(Trained(MINE)) == [SendUpdate(attached=True), Announce()]
    assert driven.doing() == "ready"
    assert driven(reply("accepted")) == [Settle(accepted=True)]


def test_a_held_version_is_not_fetched_again() -> None:
    assert ready(held=V0)(task()) == [Train(STATE), Announce()]


def test_a_task_before_its_state_waits_for_it() -> None:
    driven = Driven(held=V0)
    assert driven(LinkUp(), task()) == [Announce()]
    assert driven(StateCame(STATE)) == [Prepare(STATE)]
    assert only(driven(Prepared(STATE)), Train) == [Train(STATE)]


def test_a_task_for_a_version_to_come_waits_for_its_state() -> None:
    driven = ready()
    assert driven(task(V1)) == []
    assert only(driven(StateCame(NEXT)), Follow) == [Follow(V1, ALL)]


def test_a_late_copy_of_an_old_task_does_not_replace_the_one_at_hand() -> None:
    driven = ready()
    driven(StateCame(NEXT), task(V1), task(V0))
    assert driven.doing() == "fetching"
    assert only(driven(chunk(0, V1)), KeepModelChunk)


def test_a_task_of_another_run_waits_for_its_state() -> None:
    driven = ready(held=V0)
    assert driven(task(run="other")) == []
    assert only(driven(StateCame(msgspec.structs.replace(STATE, run="other"))), Train)


def test_a_repeated_task_of_a_round_that_is_over_takes_no_place() -> None:
    """The next one, which is early, must not give way to it."""
    driven = ready(held=V1)
    driven(StateCame(NEXT), task(V2), task(V0))
    after = msgspec.structs.replace(STATE, version=V2, round=2)
    assert only(driven(StateCame(after)), Follow) == [Follow(V2, ALL)]


def test_a_second_copy_of_a_task_changes_nothing() -> None:
    driven = ready(held=V0)
    driven(task())
    assert driven(task()) == []


def test_a_claim_to_our_name_is_answered_whatever_we_do() -> None:
    assert Driven()(ClaimCame("x")) == [Announce("x")]


# States that change


def test_two_states_while_preparing_prepare_the_last_one_once() -> None:
    driven = Driven(held=OLD)
    driven(LinkUp(), StateCame(STATE))
    other = msgspec.structs.replace(STATE, method="scaffold")
    assert driven(StateCame(OTHER_METHOD), StateCame(other)) == []
    assert driven(Prepared(STATE)) == [Prepare(other)]
    assert driven.doing() == "starting"
    assert driven(Prepared(other)) == [Announce()]


def test_a_new_version_of_the_same_job_needs_no_new_preparation() -> None:
    assert ready()(StateCame(NEXT)) == []


def test_a_device_that_cannot_run_the_method_says_so_and_stays() -> None:
    """No task, chunk or repeated state moves it; another method does."""
    driven = Driven(held=V0)
    driven(LinkUp(), StateCame(STATE))
    said = driven(Unable(STATE, "no such method"))
    assert said == [Note("cannot take part: no such method"), Announce()]
    assert (driven.doing(), driven.machine.view.problem) == ("unable", "no such method")
    assert driven(task(), StateCame(NEXT), task(V1), chunk(0), Tick(), at=1e6) == []
    assert driven(LinkUp()) == [Announce()]
    assert driven(StateCame(OTHER_METHOD)) == [Prepare(OTHER_METHOD), Announce()]
    assert (driven.doing(), driven.machine.view.problem) == ("starting", "")
    assert driven(Prepared(OTHER_METHOD)) == [Announce()]
    assert driven.doing() == "ready"


def test_a_preparation_whose_cause_may_pass_is_tried_again_and_less_and_less_often() -> None:
    driven = Driven(held=V0)
    driven(LinkUp(), StateCame(STATE))
    at, delays = 100.0, []
    for _ in range(8):
        driven(Unable(STATE, "the trainer process was killed", Cause.BOX), at=at)
        assert driven.doing() == "unable"
        since = at
        while driven(Tick(), at=at) == []:
            at += 1
        delays.append(at - since)
        assert driven.doing() == "starting"
    assert delays == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    driven(Prepared(STATE))
    assert driven.doing() == "ready"


def test_a_preparation_that_the_disk_had_no_space_for_is_tried_every_minute() -> None:
    driven = Driven(held=V0)
    driven(LinkUp(), StateCame(STATE))
    at = 100.0
    for _ in range(4):
        driven(Unable(STATE, "the disk is full", Cause.DISK), at=at)
        assert driven(Tick(), at=at + 59) == []
        at += 60
        assert driven(Tick(), at=at) == [Prepare(STATE), Announce()]


def test_a_preparation_is_tried_at_once_when_its_cause_is_gone() -> None:
    driven = Driven(held=V0)
    driven(LinkUp(), StateCame(STATE))
    driven(Unable(STATE, "no such folder", Cause.DATA), at=100.0)
    assert driven.machine.view.cause is Cause.DATA
    assert driven(Tick(), at=101.0) == []
    assert driven(CauseGone(), at=101.0) == [Prepare(STATE), Announce()]
    assert driven(CauseGone(), at=102.0) == [], "the preparation is under way"
    driven(Prepared(STATE))
    assert driven.doing() == "ready"
    assert driven(CauseGone(), at=103.0) == []


def test_another_file_of_the_same_method_is_another_job() -> None:
    driven = ready()
    changed = msgspec.structs.replace(STATE, files={"mine": "cd" * 32})
    assert driven(StateCame(changed)) == [Prepare(changed), Announce()]
    assert driven(Unable(changed, "other file"))[1:] == [Announce()]
    assert driven(task()) == []  # what was prepared before does not serve
    assert driven(StateCame(STATE)) == [Prepare(STATE), Announce()]


def test_another_method_while_training_ends_the_turn_and_is_prepared() -> None:
    driven = ready(held=V0)
    driven(task())
    assert driven(StateCame(OTHER_METHOD)) == [Abandon()]
    assert driven.doing() == "training"
    commands = driven(Abandoned())
    assert only(commands, Prepare) == [Prepare(OTHER_METHOD)]
    assert driven.doing() == "starting"


@pytest.mark.parametrize(
    "changed",
    [
        {"run": "other"},
        {"seed": 1},
        {"training": Training(10_000, 1, 0.1, 0.0, 0.0)},
        {"method": "fedprox(mu=0.1)"},
        {"encoding": "float16"},
    ],
)
def test_a_turn_whose_terms_change_is_abandoned_and_another_taken(changed: dict[str, Any]) -> None:
    """However many epochs a state asked for, it cannot keep the device from its work for good."""
    driven = ready(held=V0)
    driven(task())
    other = msgspec.structs.replace(STATE, **changed)
    assert driven(StateCame(other)) == [Abandon()]
    driven(task(run=other.run))
    commands = driven(Abandoned())
    if "run" in changed or "seed" in changed:
        assert only(commands, Train) == [Train(other)]
    else:
        assert only(driven(Prepared(other)), Train) == [Train(other)]


def test_a_turn_goes_on_while_rounds_pass() -> None:
    driven = ready(held=V0)
    driven(task())
    done = msgspec.structs.replace(NEXT, phase="done", deadline=1.0, accuracy=0.5, rounds=1)
    assert driven(StateCame(NEXT), StateCame(done)) == []
    assert driven.doing() == "training"


def test_another_method_while_training_drops_a_turn_that_was_over() -> None:
    driven = ready(held=V0)
    driven(task(), StateCame(OTHER_METHOD))
    commands = driven(Trained(MINE))
    assert only(commands, Settle) == [Settle(accepted=False)]
    assert only(commands, Prepare) == [Prepare(OTHER_METHOD)]
    assert not only(commands, SendUpdate)
    assert driven.doing() == "starting"


def test_another_method_while_fetching_stops_the_fetch() -> None:
    driven = ready()
    driven(task())
    other = msgspec.structs.replace(OTHER_METHOD, version=V1)
    assert driven(StateCame(other)) == [Unfollow(V0, ALL), Prepare(other), Announce()]


def test_a_new_version_while_fetching_leaves_the_old_one_at_once() -> None:
    """The old chunks are cleared from the broker: waiting for them would be in vain."""
    driven = ready()
    driven(task(), chunk(0))
    assert driven(StateCame(NEXT)) == [Unfollow(V0, ALL), Announce()]
    assert driven.doing() == "ready"
    assert only(driven(task(V1)), Follow) == [Follow(V1, ALL)]
    assert driven(chunk(1, V0)) == []


def test_a_new_task_and_then_its_state_while_fetching_moves_on_at_once() -> None:
    driven = ready()
    driven(task(), chunk(0))
    assert driven(task(V1)) == []
    moved = [Unfollow(V0, ALL), ExpectModel(V1, NEXT.manifest), Follow(V1, ALL)]
    assert driven(StateCame(NEXT)) == moved
    assert [k.offset for k in only(driven(*(chunk(i, V1) for i in range(3))), KeepModelChunk)] == [
        0,
        1024,
        2048,
    ]


def test_a_new_version_while_training_is_taken_up_once_the_old_turn_is_decided() -> None:
    """Only the report of the outdated update goes out; the coordinator says late, or accepted."""
    driven = ready(held=V0)
    driven(task(), StateCame(NEXT), task(V1))
    assert driven(Trained(MINE)) == [SendUpdate(attached=True), Announce()]
    commands = driven(reply("late", reason="round 1 is over"))
    assert only(commands, Settle) == [Settle(accepted=False, late=True)]
    assert only(commands, Follow) == [Follow(V1, ALL)]


# Fetching


def test_a_stalled_fetch_subscribes_again_after_longer_and_longer_waits() -> None:
    driven = ready()
    driven(task(), at=200.0)
    assert driven(Tick(), at=204.9) == []
    assert driven(Tick(), at=205.0) == [Unfollow(V0, ALL), Follow(V0, ALL)]
    assert driven(Tick(), at=214.9) == []
    assert driven(Tick(), at=215.0) == [Unfollow(V0, ALL), Follow(V0, ALL)]


def test_only_what_is_missing_is_asked_for_after_a_stall_or_by_a_broker_that_forgot() -> None:
    driven = ready()
    driven(task(), chunk(1))
    assert driven(Tick(), at=driven.now + 5.0) == [Unfollow(V0, ALL), Follow(V0, (0, 2))]
    driven(chunk(2))
    assert driven(LinkUp(resumed=True)) == [Announce()], "the broker sends what it has queued"
    assert driven(LinkUp()) == [Follow(V0, (0,)), Announce()]


def test_a_restarted_agent_goes_on_with_what_had_come() -> None:
    """Chunks that waited in the broker come before the state and the preparation; none is lost."""
    incoming = IncomingModel(V0, Assembly(STATE.manifest, 100.0, have={0}))
    driven = Driven(incoming=incoming)
    assert only(driven(LinkUp(resumed=True), chunk(2)), KeepModelChunk) == [
        KeepModelChunk(V0, 2048, MODEL[2048:])
    ]
    assert driven(StateCame(STATE)) == [Prepare(STATE)]
    assert only(driven(chunk(1)), KeepModelChunk) == [KeepModelChunk(V0, 1024, MODEL[1024:2048])]
    assert only(driven(Prepared(STATE)), CheckModel) == [CheckModel(V0, STATE.manifest)]


def test_what_had_come_of_another_version_is_of_no_use() -> None:
    driven = Driven(incoming=IncomingModel(V0, Assembly(STATE.manifest, 100.0, have={0})))
    driven(LinkUp(), StateCame(NEXT))
    assert Follow(V1, ALL) in driven(Prepared(NEXT))


def test_a_large_model_is_asked_for_in_parts() -> None:
    """A task or a reply waits behind the chunks of a part at most."""
    data = bytes(40 * 1024)
    state = msgspec.structs.replace(STATE, manifest=chunks.manifest(data, 1024))
    driven = Driven()
    driven(LinkUp(), StateCame(state), Prepared(state))
    parts = [tuple(range(16)), tuple(range(16, 32)), tuple(range(32, 40))]
    come = [ModelChunkCame(V0, chunks.pack(data, state.manifest, index)) for index in range(40)]
    commands = driven(*come)
    assert only(commands, Follow) == [Follow(V0, part) for part in parts[1:]]
    assert only(commands, Unfollow) == [Unfollow(V0, part) for part in parts]
    assert only(commands, CheckModel) == [CheckModel(V0, state.manifest)]


def test_a_spoiled_model_is_fetched_again_after_a_while() -> None:
    driven = ready()
    driven(task(), *map(chunk, range(3)))
    note, expect = driven(Spoiled(V0, "its SHA-256 does not fit"))
    assert isinstance(note, Note)
    assert expect == ExpectModel(V0, STATE.manifest)
    assert driven(Tick(), at=driven.now + 4.9) == []
    assert driven(Tick(), at=driven.now + 0.1) == [Follow(V0, ALL)]
    assert only(driven(*map(chunk, range(3))), CheckModel) == [CheckModel(V0, STATE.manifest)]


def test_a_held_model_whose_file_is_gone_is_fetched_again() -> None:
    driven = ready(held=V0)
    driven(task())
    driven(Spoiled(V0, "there is no such file"))
    assert driven.doing() == "fetching"
    assert driven(Tick(), at=driven.now + 5.0) == [Follow(V0, ALL)]


def test_a_damaged_or_foreign_chunk_costs_a_line_in_the_log() -> None:
    driven = ready()
    driven(task())
    foreign = ModelChunkCame(V0, chunks.pack(bytes(2500), chunks.manifest(bytes(2500), 1024), 0))
    for odd in (ModelChunkCame(V0, b"torn"), foreign):
        with pytest.raises(WireError):
            driven(odd)
    assert only(driven(chunk(0)), KeepModelChunk)


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest(1_000_000, 1024, 2**53, "0" * 64),
        Manifest(7, 1024, 2500, "0" * 64),
        Manifest(3, 1024, 3000, "0" * 64),
    ],
    ids=["huge", "too many chunks", "more than the layout takes"],
)
def test_a_manifest_that_cannot_be_honest_is_not_followed(manifest: Manifest) -> None:
    state = msgspec.structs.replace(STATE, manifest=manifest)
    driven = Driven()
    driven(LinkUp(), StateCame(state))
    note, _ = driven(Prepared(state, most_bytes=2999))
    assert isinstance(note, Note)
    assert driven.doing() == "ready"
    assert driven(task()) == []


# Sending


def test_a_restarted_agent_sends_its_pending_update_before_it_says_ready() -> None:
    """Not before it is prepared: which scalars may leave is the method's to say."""
    driven = Driven(held=V0, pending=MINE)
    assert driven(LinkUp()) == [Announce()]
    assert driven(StateCame(STATE)) == [Prepare(STATE)]
    assert driven(Prepared(STATE)) == [SendUpdate(), Announce()]
    assert driven(task()) == [SendUpdate()]
    assert driven(reply("accepted")) == [Settle(accepted=True)]


def test_a_restarted_agent_asks_what_became_of_an_outdated_update() -> None:
    driven = Driven(held=V0, pending=MINE)
    commands = driven(LinkUp(), StateCame(NEXT), task(V1), Prepared(NEXT))
    assert only(commands, SendUpdate) == [SendUpdate()]
    assert not only(commands, Follow), "the next turn begins from what this one left"
    commands = driven(reply("accepted"))
    fetch = [ExpectModel(V1, NEXT.manifest), Follow(V1, ALL)]
    assert commands == [Settle(accepted=True), *fetch, Announce()]


def test_an_update_of_another_run_is_dropped() -> None:
    driven = Driven(held=V0, pending=Pending("old run", V0))
    commands = driven(LinkUp(), StateCame(STATE), Prepared(STATE))
    assert only(commands, Settle) == [Settle(accepted=False)]
    assert not only(commands, SendUpdate)


def test_a_lost_answer_is_asked_for_with_the_report_alone() -> None:
    driven = trained()
    assert driven(Tick(), at=109.9) == []
    assert driven(Tick(), at=110.0) == [SendUpdate()]
    assert driven(Tick(), at=129.9) == []
    assert driven(Tick(), at=130.0) == [SendUpdate()]


def test_nobody_is_asked_once_the_run_is_done() -> None:
    driven = trained()
    driven(StateCame(msgspec.structs.replace(NEXT, phase="done")))
    assert driven(Tick(), at=1e6) == []


def test_a_day_without_a_connection_does_not_pile_up_reports() -> None:
    driven = trained()
    asked = [c for second in range(86_400) for c in driven(Tick(), at=200.0 + second)]
    assert len(asked) < 300


@pytest.mark.parametrize("event", [LinkUp(), StateCame(STATE)])
def test_after_a_new_connection_or_state_the_coordinator_is_asked(event: Any) -> None:
    assert SendUpdate() in trained()(event)


def test_a_task_for_what_was_trained_is_answered_with_the_report() -> None:
    driven = trained()
    assert driven(task(), at=driven.now + 1.0) == [SendUpdate()]
    assert driven(task(), at=driven.now + 30.0) == [SendUpdate()]


def test_only_the_first_report_of_an_update_may_carry_it() -> None:
    """A repetition asks for a decision: the coordinator may have the update already."""
    driven = trained()
    again = [driven(event) for event in (LinkUp(), StateCame(STATE), task())]
    again.append(driven(Tick(), at=driven.now + UNANSWERED))
    assert [only(commands, SendUpdate) for commands in again] == [[SendUpdate()]] * 4


def test_only_the_chunks_that_are_asked_for_are_sent() -> None:
    driven = trained()
    assert driven(reply("resend", chunks=(0, 2))) == [SendUpdate((0, 2))]
    assert driven(reply("resend")) == []
    assert driven(reply("resend", V1, chunks=(0,))) == []


def test_a_turn_whose_update_is_lost_is_taken_again() -> None:
    driven = trained()
    assert only(driven(TurnLost()), Train) == [Train(STATE)]


@pytest.mark.parametrize("kind", ["accepted", "late"])
def test_nothing_is_settled_while_a_turn_is_taken_again(kind: str) -> None:
    """It would begin from the private state that follows it. Its end asks once more."""
    driven = trained()
    assert only(driven(TurnLost()), Train)
    assert driven(reply(kind), reply("resend", chunks=(0,))) == []
    assert driven(Trained(MINE)) == [SendUpdate(attached=True), Announce()]
    assert len(only(driven(reply(kind)), Settle)) == 1


def test_nothing_is_settled_while_the_turn_after_a_lost_one_is_taken() -> None:
    """The worker has read private state, and is about to write it."""
    driven = trained()
    driven.machine.download.held = V1
    driven(StateCame(NEXT), task(V1))
    assert only(driven(TurnLost()), Train) == [Train(NEXT)]
    assert driven(reply("accepted"), reply("resend", chunks=(0,)), reply("late")) == []


@pytest.mark.parametrize("kind", ["late", "refused"])
def test_a_late_or_refused_update_is_dropped_and_the_task_with_it(kind: str) -> None:
    driven = trained()
    commands = driven(reply(kind, reason="because"))
    assert only(commands, Settle) == [Settle(accepted=False, late=kind == "late")]
    assert not only(commands, Train)


def test_asked_again_after_a_refusal_the_turn_is_taken_again() -> None:
    driven = trained()
    driven(reply("refused", reason="because"))
    assert only(driven(task()), Train)


def test_a_late_turn_is_not_taken_again_for_a_task_that_was_on_its_way() -> None:
    driven = trained()
    driven(reply("late", reason="round 1 is over"))
    assert not only(driven(task(), StateCame(STATE), task(), Tick()), Train)
    driven(StateCame(NEXT), task(V1), *(chunk(index, V1) for index in ALL))
    assert only(driven(Fetched(V1)), Train) == [Train(NEXT)]


def test_a_late_turn_is_not_taken_again_after_a_restart_either() -> None:
    driven = ready(held=V0, missed=MINE)
    assert not only(driven(task()), Train)
    other = msgspec.structs.replace(STATE, run="other")
    driven(StateCame(other))
    assert only(driven(task(run="other")), Train), "of another run it is another turn"


def test_a_reply_to_an_earlier_update_decides_nothing() -> None:
    driven = ready(held=V1)
    driven(StateCame(NEXT), task(V1), Trained(Pending("run", V1)))
    assert driven(reply("late", V0), reply("accepted", V0)) == []
    assert driven.machine.turn.pending == Pending("run", V1)
    assert driven.machine.assignment.task is not None


def test_no_turn_begins_before_the_answer_to_the_last_one_is_on_disk() -> None:
    """The next one would begin from the private state before it: it is asked for once more."""
    driven = ready(held=V1, pending=MINE)
    driven(StateCame(NEXT), task(V1))
    assert driven.machine.handle(reply("accepted"), driven.now) == [Settle(accepted=True)]
    said = driven(Unsettled("the disk is full"))
    assert not only(said, Train)
    assert (driven.doing(), driven.machine.view.problem) == ("failed", "the disk is full")
    assert driven.machine.turn.pending == MINE
    assert driven(Tick(), at=driven.now + UNANSWERED) == [SendUpdate()]
    assert only(driven(reply("accepted")), Train) == [Train(NEXT)]
    assert driven.doing() == "training"


def test_an_accepted_update_is_decided_once() -> None:
    driven = trained()
    assert driven(reply("accepted"), reply("accepted"), reply("late")) == [Settle(accepted=True)]


def test_an_accepted_update_is_sent_again_rather_than_trained_again() -> None:
    driven = trained()
    driven(reply("accepted"))
    assert driven(task()) == [SendUpdate()]
    assert driven(reply("accepted")) == []
    assert driven(StateCame(STATE)) == []
    assert driven(task(), at=driven.now + 60.0) == [SendUpdate()], "a coordinator without it"
    assert driven(reply("resend", chunks=(1,))) == [SendUpdate((1,))]


def test_an_accepted_update_is_sent_again_after_a_restart() -> None:
    driven = ready(held=V0, last_accepted=MINE)
    assert driven(task()) == [SendUpdate()]


def test_an_accepted_update_of_another_run_with_the_same_version_is_not_taken_for_ours() -> None:
    driven = ready(held=V0, last_accepted=Pending("old run", V0))
    assert only(driven(task()), Train)


# Replies to others


@pytest.mark.parametrize("kind", ["accepted", "late", "refused", "resend"])
def test_a_reply_of_another_run_decides_nothing(kind: str) -> None:
    driven = trained()
    assert driven(reply(kind, run="other", chunks=(0,))) == []
    assert driven.machine.turn.pending == MINE


def test_a_reply_that_comes_twice_decides_once() -> None:
    driven = trained()
    assert driven(reply("accepted")) == [Settle(accepted=True)]
    assert driven(reply("accepted"), reply("refused"), reply("late")) == []
    assert driven.machine.turn.last_accepted == MINE


def test_while_another_state_is_prepared_nothing_is_reported() -> None:
    """The prepared method lists the scalars that may leave: it is not the update's method."""
    driven = trained()
    other = msgspec.structs.replace(STATE, method="fedprox(mu=0.1)")
    assert not only(driven(StateCame(other)), SendUpdate)
    assert not only(driven(Tick(), at=200.0), SendUpdate)
    assert not only(driven(StateCame(STATE)), SendUpdate), "that other one is still being prepared"
    assert not only(driven(Prepared(other)), SendUpdate)
    assert only(driven(Prepared(STATE)), SendUpdate)
