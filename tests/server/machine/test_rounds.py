"""The coordinator's rounds, event by event."""

from __future__ import annotations

import hashlib
import math
from typing import Any, TypeVar

import msgspec
import pytest

from fededge.config import RoundsConfig
from fededge.wire import chunks
from fededge.wire.messages import MAX_RESEND, Manifest, Reply, Report, Status, decode, encode
from fededge_server.machine.events import (
    Bad,
    Check,
    Command,
    Discard,
    ExpectUpdate,
    Full,
    Invite,
    Judge,
    KeepUpdateChunk,
    Merge,
    MergeDone,
    Note,
    PublishState,
    RefusalWritten,
    Refuse,
    Remember,
    ReportCame,
    RolledBack,
    RoundOpened,
    RunFinished,
    SendReply,
    StatusCame,
    Stored,
    Tick,
    UpdateChunkCame,
)
from fededge_server.machine.facts import Recalled, RunFacts
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.participants import Participant, Participants
from fededge_server.machine.fleet.parts import Part
from fededge_server.machine.rounds.round_state import RoundsView
from fededge_server.machine.rounds.rounds import Rounds

LAYOUT = "ab" * 32
OTHER = "cd" * 32
V0, V1 = "000000-0123456789abcdef", "000001-fedcba9876543210"
FACTS = RunFacts("run", 7, LAYOUT, frozenset({"examples", "loss"}), 1024, 10_000)

C = TypeVar("C")


def only(commands: list[Command], kind: type[C]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def asked_for(devices: str) -> dict[str, dict[str, int]]:
    """The devices asked for the first version, as the journal has them."""
    return {V0: dict.fromkeys(devices, 5)}


def status(device: str, **fields: Any) -> StatusCame:
    values = {"instance": "i", "online": True, "device": device, "activity": "ready"}
    return StatusCame(device, Status(**{**values, "layout": LAYOUT, "examples": 5, **fields}))


def gone(device: str) -> StatusCame:
    return status(device, online=False, activity="offline")


def data_of(device: str, size: int = 2500) -> bytes:
    return hashlib.shake_128(device.encode()).digest(size)


def report(device: str, version: str = V0, /, **fields: Any) -> ReportCame:
    manifest = chunks.manifest(data_of(device), 1024)
    made = Report(device, "run", version, LAYOUT, manifest, {"examples": 5.0})
    return ReportCame(device, msgspec.structs.replace(made, **fields))


def with_update(device: str, version: str = V0, damaged: bool = False) -> ReportCame:
    """A report in one message with its update, which fits a chunk."""
    data = data_of(device, 500)
    manifest = chunks.manifest(data, 1024)
    packed = bytearray(chunks.pack(data, manifest, 0))
    packed[-1] ^= damaged
    alone = report(device, version, manifest=manifest)
    return ReportCame(device, alone.report, memoryview(bytes(packed)))


def chunk(device: str, index: int, version: str = V0) -> UpdateChunkCame:
    data = data_of(device)
    return UpdateChunkCame(device, version, chunks.pack(data, chunks.manifest(data, 1024), index))


class Driven:
    """Rounds whose checks are done at once, with the time in hand.

    Updates of devices in `bad` do not pass; `norms` are those of the changes, 0 by default.
    """

    def __init__(
        self,
        recalled: Recalled | None = None,
        number: int = 0,
        version: str = V0,
        facts: RunFacts = FACTS,
        **config: Any,
    ) -> None:
        rules = {"count": 3, "min_devices": 2, "deadline": 60.0} | config
        self.machine = Rounds(facts, RoundsConfig(**rules), number, version, recalled)
        self.now = 0.0
        self.bad: set[str] = set()
        self.norms: dict[str, float] = {}

    def __call__(self, *events: Any, at: float | None = None) -> list[Command]:
        self.now = self.now if at is None else at
        commands: list[Command] = []
        for event in events:
            batch = self.machine.handle(event, self.now)
            commands += batch
            commands += self(*(self.checked(command) for command in only(batch, Check)))
        return commands

    def checked(self, check: Check) -> Stored | Bad:
        device, report = check.device, check.report
        if device in self.bad:
            return Bad(device, "not finite", report.version)
        return Stored(device, report, self.norms.get(device, 0.0))

    @property
    def participants(self) -> Participants:
        return self.machine.participants

    @property
    def invited(self) -> list[str]:
        return [*self.participants.invited]

    @property
    def present(self) -> list[str]:
        return [one.device for one in self.participants.where(Group.ONLINE)]

    @property
    def sending(self) -> list[Participant]:
        return self.participants.doing(Part.SENDING)

    @property
    def view(self) -> RoundsView:
        return self.machine.view(self.now)

    def ask(self, devices: str) -> None:
        """Have the round ask these devices, whatever it would choose."""
        for device in devices:
            self.participants.of(device).asked = 5
            if self.participants[device].part is Part.IDLE:
                self.participants[device].move(Part.INVITED)

    def spoil(self, device: str) -> list[Command]:
        """Deliver an update that does not pass its check."""
        self.bad.add(device)
        commands = self.deliver(device)
        self.bad.remove(device)
        return commands

    def deliver(self, device: str, version: str = V0) -> list[Command]:
        parts = (chunk(device, index, version) for index in range(3))
        return self(report(device, version), *parts)

    def replies(self, *events: Any, at: float | None = None) -> list[tuple[str, str]]:
        return [(a.device, a.reply.kind) for a in only(self(*events, at=at), SendReply)]


def opened(*devices: str, **config: Any) -> Driven:
    driven = Driven(**({"min_devices": len(devices)} | config))
    driven(*(status(device) for device in devices))
    assert driven.view.phase == "open"
    return driven


# Opening


def test_a_round_opens_when_enough_are_there_and_asks_all_of_them() -> None:
    driven = Driven(min_devices=2)
    assert [type(c) for c in driven(status("a"))] == [Note]
    commands = driven(status("b"))
    assert [type(c) for c in commands] == [Note, Remember, RoundOpened, Invite, Invite]
    assert only(commands, Remember) == [Remember(0, V0, {"a": 5, "b": 5}, ("a", "b"))]
    assert only(commands, RoundOpened) == [RoundOpened(0, ("a", "b"))]
    assert only(commands, Invite) == [Invite("a", 0, V0), Invite("b", 0, V0)]


@pytest.mark.parametrize(
    ("participants", "over_select", "asked"), [(2, 1.0, 2), (2, 1.5, 3), (3, 1.1, 4), (10, 1.1, 11)]
)
def test_over_selection_rounds_up_but_not_past_a_whole_number(
    participants: int, over_select: float, asked: int
) -> None:
    devices = [f"d{index:02d}" for index in range(20)]
    driven = opened(*devices, participants=participants, over_select=over_select)
    assert len(driven.invited) == asked


def test_a_device_that_is_starting_or_offline_does_not_count() -> None:
    driven = Driven(min_devices=1)
    assert not only(driven(status("a", activity="starting"), gone("a")), Invite)
    assert driven.view.phase == "waiting"


def test_a_device_that_is_unable_does_not_count_and_is_named_with_its_problem() -> None:
    driven = Driven(min_devices=2)
    unable = status("b", activity="unable", problem="no such method")
    commands = driven(status("a"), unable)
    assert Note("cannot take part: no such method", "b") in commands
    assert not only(commands, RoundOpened)
    assert only(driven(status("b")), RoundOpened)


def test_an_invited_device_that_comes_back_unable_is_not_waited_for() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    assert only(driven(status("b", activity="unable", problem="no file")), Merge)


def test_a_device_with_another_layout_does_not_count_and_is_told_nothing() -> None:
    """It knows by itself; and somebody else may have said it in its name."""
    driven = Driven(min_devices=1)
    commands = driven(status("a", layout=OTHER))
    assert not only(commands, SendReply)
    (note,) = only(commands, Note)
    assert OTHER in note.text
    assert LAYOUT in note.text
    assert driven.view.phase == "waiting"
    assert driven.participants.where(Group.KNOWN) == []


def test_an_invited_device_that_comes_back_with_another_layout_is_not_waited_for() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    commands = driven(gone("b"), status("b", layout=OTHER))
    assert [set(merge.reports) for merge in only(commands, Merge)] == [{"a"}]


def test_a_status_on_the_topic_of_another_device_is_dropped() -> None:
    driven = Driven(min_devices=1)
    event = StatusCame("a", status("b").status)
    (note,) = driven(event)
    assert isinstance(note, Note)
    assert driven.present == []


# Updates


def test_an_update_is_kept_checked_and_accepted() -> None:
    driven = opened("a", "b")
    commands = driven.deliver("a")
    assert [type(c) for c in commands] == [
        ExpectUpdate,
        SendReply,
        KeepUpdateChunk,
        KeepUpdateChunk,
        KeepUpdateChunk,
        Check,
        SendReply,
    ]
    kept = b"".join(c.data for c in only(commands, KeepUpdateChunk))
    assert kept == data_of("a")
    assert [c.offset for c in only(commands, KeepUpdateChunk)] == [0, 1024, 2048]
    replies = [answer.reply for answer in only(commands, SendReply)]
    assert replies == [Reply("resend", V0, chunks=(0, 1, 2)), Reply("accepted", V0)]


def test_an_update_that_comes_with_its_report_is_checked_at_once() -> None:
    driven = opened("a", "b")
    check, answer = driven(with_update("a"))
    assert isinstance(check, Check)
    assert check.data == data_of("a", 500)
    assert answer == SendReply("a", Reply("accepted", V0))
    assert driven(with_update("a"))[-1] == answer, "a repetition is answered, not taken again"


def test_an_update_that_comes_again_while_it_is_checked_is_not_taken_again() -> None:
    driven = opened("a", "b")
    assert len(only(driven.machine.handle(with_update("a"), 1.0), Check)) == 1
    assert driven.machine.handle(with_update("a"), 1.0) == []


def test_an_update_that_comes_with_its_report_ends_the_transfer_of_its_chunks() -> None:
    driven = opened("a", "b")
    alone = with_update("a").report
    assert driven.replies(ReportCame("a", alone)) == [("a", "resend")]
    assert driven.replies(with_update("a")) == [("a", "accepted")]
    assert driven(UpdateChunkCame("a", V0, bytes(with_update("a").chunk))) == []


def test_a_damaged_update_with_its_report_is_asked_for_as_a_chunk() -> None:
    driven = opened("a", "b")
    note, expected, answer = driven(with_update("a", damaged=True))
    assert isinstance(note, Note)
    assert "chunk dropped" in note.text
    assert isinstance(expected, ExpectUpdate)
    assert answer == SendReply("a", Reply("resend", V0, chunks=(0,)))
    assert driven.replies(UpdateChunkCame("a", V0, bytes(with_update("a").chunk))) == [
        ("a", "accepted")
    ]


def test_an_unwanted_update_with_its_report_is_not_looked_into() -> None:
    driven = opened("a", "b")
    assert driven.replies(with_update("z")) == [("z", "refused")]
    assert driven.replies(with_update("a", V1)) == [("a", "refused")]
    assert only(driven(Full(True), with_update("a")), Check) == []


def test_chunks_may_come_in_any_order_and_again() -> None:
    driven = opened("a", "b")
    order = [2, 0, 2, 0, 1, 1, 2]
    commands = driven(report("a"), *(chunk("a", index) for index in order), report("a"))
    assert sorted(c.offset for c in only(commands, KeepUpdateChunk)) == [0, 1024, 2048]
    assert len(only(commands, Check)) == 1
    assert [a.reply.kind for a in only(commands, SendReply)] == ["resend", "accepted", "accepted"]


def test_only_the_missing_chunks_are_asked_for_again_and_with_growing_patience() -> None:
    driven = opened("a", "b")
    assert driven.replies(report("a"), chunk("a", 1), at=10.0) == [("a", "resend")]
    assert driven(Tick(), at=14.9) == []
    (answer, invitation) = driven(Tick(), at=15.0)
    assert isinstance(answer, SendReply)
    assert answer.reply == Reply("resend", V0, chunks=(0, 2))
    assert invitation == Invite("a", 0, V0), "if it has lost its update, it takes the turn again"
    assert driven(Tick(), at=24.9) == []
    assert driven.replies(Tick(), at=25.0) == [("a", "resend")]


def test_a_report_that_comes_again_asks_only_for_what_has_not_come_for_a_while() -> None:
    """A restarted device reports anew; one whose chunks are on their way does too, now and then."""
    driven = opened("a", "b")
    driven(report("a"), chunk("a", 1), at=10.0)
    assert driven(report("a"), at=14.0) == []
    (answer,) = driven(report("a"), at=15.0)
    assert isinstance(answer, SendReply)
    assert answer.reply.chunks == (0, 2)


def test_a_coordinator_that_starts_again_asks_only_for_what_had_not_come() -> None:
    coming = {"a": (report("a").report, frozenset({0}))}
    driven = Driven(Recalled(asked_for("ab"), coming=coming))
    assert [type(c) for c in driven(chunk("a", 1))] == [KeepUpdateChunk], (
        "it had waited in the broker"
    )
    assert only(driven(chunk("a", 2)), Check)
    coming = {"a": (report("a").report, frozenset({0, 2}))}
    driven = Driven(Recalled(asked_for("ab"), coming=coming))
    driven(status("a", activity="training"))
    assert driven(Tick(), at=4.9) == [], "it may wait in the broker"
    asked = [answer.reply.chunks for answer in only(driven(Tick(), at=5.0), SendReply)]
    assert asked == [(1,)]


def test_an_update_that_had_come_whole_before_the_restart_is_checked() -> None:
    coming = {"a": (report("a").report, frozenset({0, 1, 2}))}
    driven = Driven(Recalled(asked_for("ab"), coming=coming))
    assert only(driven(Tick()), Check) == [Check("a", report("a").report)]


def test_what_had_come_of_a_merged_update_is_not_taken_up_again() -> None:
    """Its file may be there again after a power cut, though a version was made of it."""
    merged = {"a": report("a").report}
    coming = {"a": (report("a").report, frozenset({0, 1, 2}))}
    driven = Driven(Recalled(accepted=merged, coming=coming), late="fold")
    assert not only(driven(status("a"), status("b"), Tick()), Check)


def test_nobody_who_is_away_is_asked_to_send_again() -> None:
    driven = opened("a", "b")
    driven(report("a"), gone("a"))
    assert driven(Tick(), at=30.0) == []
    driven(status("a"))
    assert driven.replies(Tick(), at=30.0) == [("a", "resend")]


def test_a_question_for_missing_chunks_fits_into_a_reply() -> None:
    facts = msgspec.structs.replace(
        chunks.manifest(data_of("a"), 1024), chunks=5000, bytes=5_120_000
    )
    machine = Rounds(
        RunFacts("run", 0, LAYOUT, frozenset({"examples"}), 1024, 10**7),
        RoundsConfig(min_devices=1),
        0,
        V0,
    )
    machine.handle(status("a"), 0.0)
    (answer,) = only(machine.handle(report("a", manifest=facts), 0.0), SendReply)
    assert len(answer.reply.chunks) == MAX_RESEND
    assert decode(encode(answer.reply), Reply) == answer.reply


def test_a_chunk_without_its_report_is_dropped() -> None:
    driven = opened("a", "b")
    assert driven(chunk("a", 0)) == []


def test_a_damaged_or_foreign_chunk_costs_a_line_in_the_log() -> None:
    driven = opened("a", "b")
    driven(report("a"))
    torn = UpdateChunkCame("a", V0, chunk("a", 0).message[:-1])
    foreign = UpdateChunkCame("a", V0, chunk("b", 0).message)
    assert [type(c) for c in driven(torn, foreign)] == [Note, Note]
    assert len(only(driven(*(chunk("a", i) for i in range(3))), Check)) == 1


def test_another_update_of_the_same_device_replaces_the_one_on_its_way() -> None:
    driven = opened("a", "b")
    driven(report("a"), chunk("a", 0))
    other = chunks.manifest(data_of("a again"), 1024)
    expected = ExpectUpdate("a", report("a", manifest=other).report)
    assert driven(report("a", manifest=other))[0] == expected
    (note,) = driven(chunk("a", 1))
    assert isinstance(note, Note)


def test_a_late_copy_of_an_old_report_does_not_disturb_a_transfer() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    driven.deliver("b")
    driven(MergeDone(V1))
    driven(report("a", V1), chunk("a", 0, V1))
    assert driven.replies(report("a", V0)) == [("a", "accepted")]
    commands = driven(chunk("a", 1, V1), chunk("a", 2, V1))
    assert len(only(commands, Check)) == 1


@pytest.mark.parametrize(
    ("version", "kind", "why"),
    [
        ("000000-aaaaaaaaaaaaaaaa", "late", "round 1 is over"),
        ("000001-aaaaaaaaaaaaaaaa", "refused", "wanted is"),
        ("000009-aaaaaaaaaaaaaaaa", "refused", "wanted is"),
    ],
)
def test_a_version_that_never_was_is_judged_by_its_name(version: str, kind: str, why: str) -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    driven.deliver("b")
    driven(MergeDone(V1))
    (answer,) = only(driven(report("c", version)), SendReply)
    assert answer.reply.kind == kind
    assert why in answer.reply.reason


def test_a_bad_update_is_refused_and_not_waited_for() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    commands = driven.spoil("b")
    assert only(commands, SendReply)[-1] == SendReply("b", Reply("refused", V0, "not finite"))
    assert only(commands, Discard) == [Discard("b", V0)]
    assert [set(merge.reports) for merge in only(commands, Merge)] == [{"a"}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "b"}, "names device 'b'"),
        ({"run": "another"}, "another run"),
        ({"layout": OTHER}, OTHER),
        ({"version": V1}, V1),
        ({"scalars": {"loss": 1.0}}, "no examples"),
        ({"scalars": {"examples": 1.0, "labels": 3.0}}, "labels"),
        ({"scalars": {"examples": -1.0}}, "claims -1 examples, the device announced 5"),
        ({"scalars": {"examples": 1e308}}, "claims 1e+308 examples"),
        ({"scalars": {"examples": math.nan}}, "not finite"),
        ({"scalars": {"examples": 1.0, "loss": math.inf}}, "not finite"),
        ({"manifest": Manifest(1, 2048, 10, "0" * 64)}, "chunks of 2048"),
        ({"manifest": Manifest(3, 1024, 10, "0" * 64)}, "3 chunks"),
        ({"manifest": Manifest(1, 1024, 2500, "0" * 64)}, "1 chunks"),
        ({"manifest": Manifest(1_000_000, 1024, 2**53, "0" * 64)}, "the limit is 10000"),
    ],
)
def test_a_report_that_is_not_what_it_must_be_is_refused_with_the_reason(
    fields: dict[str, Any], reason: str
) -> None:
    driven = opened("a", "b")
    (answer,) = only(driven(report("a", **fields)), SendReply)
    assert answer.reply.kind == "refused"
    assert answer.reply.version == fields.get("version", V0)
    assert reason in answer.reply.reason
    assert driven.sending == []


def test_a_refusal_fits_into_a_reply_however_many_scalars_are_odd() -> None:
    driven = opened("a", "b")
    odd = {f"{'x' * 37}{index:03d}": 1.0 for index in range(64)}
    (answer,) = only(driven(report("a", scalars=odd)), SendReply)
    assert decode(encode(answer.reply), Reply) == answer.reply


def test_a_device_that_was_not_asked_is_refused() -> None:
    driven = opened("a", "b", participants=1)
    (other,) = {"a", "b"} - {*driven.invited}
    assert driven.replies(report(other)) == [(other, "refused")]


# Closing


def test_a_round_closes_when_all_have_answered_and_the_next_begins() -> None:
    driven = opened("a", "b")
    assert not only(driven.deliver("b"), Merge)
    (merge,) = only(driven.deliver("a"), Merge)
    assert list(merge.reports) == ["a", "b"], "in the order of ids, not of arrival"
    assert (merge.round, merge.devices) == (0, 2)
    commands = driven(MergeDone(V1))
    assert only(commands, Invite) == [Invite("a", 1, V1), Invite("b", 1, V1)]


def test_a_round_closes_when_enough_have_answered_and_the_rest_are_late() -> None:
    driven = opened("a", "b", "c", participants=2, over_select=1.5)
    driven(report("c"), chunk("c", 0))
    driven.deliver("a")
    commands = driven.deliver("b")
    answers = [(a.device, a.reply.kind) for a in only(commands, SendReply)]
    assert answers == [("b", "resend"), ("b", "accepted")]
    assert [set(merge.reports) for merge in only(commands, Merge)] == [{"a", "b"}]
    assert driven.replies(MergeDone(V1)) == [("c", "late")], "whose chunks need not come any more"
    assert driven.replies(report("c")) == [("c", "late")], "and who asks later"
    assert driven(chunk("c", 1)) == []


@pytest.mark.parametrize("late", ["refuse", "fold"])
def test_nothing_is_decided_on_an_update_while_a_version_is_made(late: str) -> None:
    """A coordinator that is killed now begins the same round again, and may take it then."""
    driven = opened("a", "b", "c", participants=2, over_select=1.5, late=late)
    driven(report("c"), chunk("c", 0))
    driven.deliver("a")
    assert only(driven.deliver("b"), Merge)
    assert driven(report("c"), chunk("c", 1), chunk("c", 2), Tick(), at=30.0) == []
    (left,) = driven.sending
    assert left.transfer is not None
    coming = {"c": (left.transfer.report, frozenset(left.transfer.assembly.have))}
    recalled = Recalled(asked_for("abc"), coming=coming)
    again = Driven(recalled, participants=2, over_select=1.5, late=late)
    assert ("c", "accepted") in again.replies(status("c"), chunk("c", 1), chunk("c", 2))


def test_a_device_that_leaves_is_waited_for_until_the_deadline() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    assert not only(driven(gone("b"), Tick(), at=59.9), Merge)
    (merge,) = only(driven(Tick(), at=60.0), Merge)
    assert set(merge.reports) == {"a"}


def test_a_deadline_without_a_quorum_keeps_what_came_and_asks_all_others_again() -> None:
    driven = opened("a", "b", "c", participants=2, quorum=2)
    first, other = driven.invited
    driven.deliver(first)
    commands = driven(Tick(), at=60.0)
    assert [i.device for i in only(commands, Invite)] == sorted({"a", "b", "c"} - {first})
    assert list(only(commands, Remember)[0].asked) == ["a", "b", "c"]
    assert len(only(commands, RoundOpened)) == 1, "the new deadline is published"
    assert not only(driven(Tick(), at=119.9), Merge)
    (merge,) = only(driven.deliver(other), Merge)
    assert set(merge.reports) == {first, other}


def test_a_device_that_was_refused_may_try_again_after_an_extended_deadline() -> None:
    driven = opened("a", "b", quorum=2)
    driven.deliver("a")
    driven.spoil("b")
    assert driven.replies(report("b")) == [("b", "refused")]
    assert [i.device for i in only(driven(Tick(), at=60.0), Invite)] == ["b"]
    assert len(only(driven.deliver("b"), Merge)) == 1


def test_an_update_that_is_being_checked_when_the_deadline_comes_is_in_the_merge() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    machine = driven.machine
    machine.handle(report("b"), 59.0)
    commands = [c for i in range(3) for c in machine.handle(chunk("b", i), 59.0)]
    assert len(only(commands, Check)) == 1
    assert machine.handle(Tick(), 61.0) == []
    (merge,) = only(machine.handle(Stored("b", report("b").report), 62.0), Merge)
    assert set(merge.reports) == {"a", "b"}


def test_the_last_round_finishes_the_run() -> None:
    driven = opened("a", "b", count=1)
    driven.deliver("a")
    driven.deliver("b")
    assert len(only(driven(MergeDone(V1)), RunFinished)) == 1
    assert driven.view.phase == "done"
    assert driven(status("a"), Tick(), at=50.0) == []


def test_a_finished_run_stays_finished_when_started_again() -> None:
    machine = Rounds(FACTS, RoundsConfig(count=1, min_devices=1), 1, V1)
    assert machine.view(0.0).phase == "done"
    assert not only(machine.handle(status("a"), 0.0), Invite)


def test_a_run_without_a_count_has_no_end() -> None:
    driven = opened("a", "b", count=0)
    driven.deliver("a")
    driven.deliver("b")
    commands = driven(MergeDone(V1))
    assert not only(commands, RunFinished)
    assert only(commands, RoundOpened) == [RoundOpened(1, ("a", "b"))]
    late = Rounds(FACTS, RoundsConfig(count=0, min_devices=1), 900_000, "900000-0123456789abcdef")
    assert only(late.handle(status("a"), 0.0), Invite)


# Asking again


def test_a_device_that_restarts_while_it_is_awaited_is_asked_again() -> None:
    driven = opened("a", "b")
    commands = driven(gone("a"), status("a", activity="starting"), status("a"))
    assert only(commands, Invite) == [Invite("a", 0, V0)]


def test_a_device_that_has_nothing_to_do_and_is_awaited_is_asked_again() -> None:
    """Its task was lost with the broker; it reconnected and says that it is ready."""
    driven = opened("a", "b")
    assert only(driven(status("a")), Invite) == [Invite("a", 0, V0)]


@pytest.mark.parametrize("activity", ["training", "fetching"])
def test_a_device_that_is_at_work_is_not_asked_again(activity: str) -> None:
    driven = opened("a", "b")
    assert not only(driven(status("a", activity=activity)), Invite)


def test_a_device_that_is_sending_or_has_delivered_is_not_asked_again() -> None:
    driven = opened("a", "b")
    driven(report("a"))
    assert not only(driven(status("a")), Invite)
    driven(*(chunk("a", index) for index in range(3)))
    assert not only(driven(gone("a"), status("a")), Invite)


def test_who_joins_an_open_round_of_all_is_asked_and_written_down() -> None:
    driven = opened("a", "b")
    commands = driven(status("c"))
    assert only(commands, Remember) == [Remember(0, V0, {"a": 5, "b": 5, "c": 5}, ("a", "b", "c"))]
    assert only(commands, Invite) == [Invite("c", 0, V0)]
    assert not only(commands, RoundOpened), "the state is not published anew for each who joins"
    driven.deliver("a")
    assert not only(driven.deliver("b"), Merge)
    assert [merge.devices for merge in only(driven.deliver("c"), Merge)] == [3]


def test_who_joins_a_round_of_some_is_asked_only_in_place_of_one_that_failed() -> None:
    driven = opened("a", "b", participants=2)
    assert not only(driven(status("c")), Invite)
    driven.spoil("a")
    assert [i.device for i in only(driven(status("c")), Invite)] == ["c"]


def test_a_device_that_flips_is_there_when_its_last_word_says_so() -> None:
    driven = Driven(min_devices=2)
    driven(status("a"), gone("a"), status("a"), gone("a"), gone("a"))
    assert driven.present == []
    assert [one.device for one in driven.participants.where(Group.KNOWN)] == ["a"]
    driven(status("a"))
    assert driven.present == ["a"]


# Answers that were lost


def test_an_accepted_update_is_accepted_again_however_late_the_question() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    assert driven.replies(report("a")) == [("a", "accepted")], "in its round"
    driven.deliver("b")
    assert driven.replies(report("a")) == [("a", "accepted")], "while it is merged"
    driven(MergeDone(V1))
    assert driven.replies(report("a")) == [("a", "accepted")], "and in the next"


# Starting again


def restarted(**fields: Any) -> Driven:
    recalled = Recalled(
        asked=asked_for("ab"),
        known=frozenset({"a", "b", "c"}),
        accepted={"a": report("a").report},
    )
    return Driven(recalled, **fields)


def test_a_coordinator_that_starts_again_goes_on_with_the_round_it_had_begun() -> None:
    driven = restarted(min_devices=3)
    commands = driven(Tick())
    assert only(commands, RoundOpened) == [RoundOpened(0, ("a", "b"))]
    assert not only(commands, Invite), "nobody is there yet"
    assert only(driven(status("b")), Invite) == [Invite("b", 0, V0)]
    assert not only(driven(status("a")), Invite), "its update is there"
    (merge,) = only(driven.deliver("b"), Merge)
    assert set(merge.reports) == {"a", "b"}
    assert merge.devices == 3


def test_a_coordinator_that_died_before_it_merged_merges_at_once() -> None:
    reports = {device: report(device).report for device in ("a", "b")}
    recalled = Recalled(asked_for("ab"), frozenset({"a", "b"}), reports)
    (merge,) = only(Driven(recalled)(Tick()), Merge)
    assert set(merge.reports) == {"a", "b"}


def test_a_pending_update_gets_in_after_a_restart_without_being_asked_again() -> None:
    driven = restarted()
    driven(Tick())
    commands = driven.deliver("b")
    assert [a.reply.kind for a in only(commands, SendReply)] == ["resend", "accepted"]


def test_an_update_that_comes_before_the_round_is_open_is_neither_taken_nor_refused() -> None:
    driven = Driven(min_devices=2)
    assert driven(report("a")) == []
    driven(status("a"), status("b"))
    assert [a.reply.kind for a in only(driven.deliver("a"), SendReply)] == ["resend", "accepted"]


def test_an_update_accepted_by_an_earlier_process_in_an_earlier_round_stays_accepted() -> None:
    recalled = Recalled(accepted={"a": report("a", V0).report})
    machine = Rounds(FACTS, RoundsConfig(min_devices=1), 1, V1, recalled)
    assert machine.participants.stored == {}
    (answer,) = only(machine.handle(report("a", V0), 0.0), SendReply)
    assert answer.reply == Reply("accepted", V0)


# Whom it asks


def asked(commands: list[Command]) -> list[str]:
    return [invite.device for invite in only(commands, Invite)]


def test_a_share_of_those_present_is_asked_and_enough_of_them_end_the_round() -> None:
    driven = Driven(min_devices=4, share=0.5, over_select=1.5)
    commands = driven(*(status(device) for device in "abcd"))
    assert len(asked(commands)) == 3
    first, second, _ = asked(commands)
    driven.deliver(first)
    assert only(driven.deliver(second), Merge)


def test_devices_with_too_few_examples_sit_out() -> None:
    driven = Driven(min_devices=2, min_examples=5)
    driven(status("a"), status("poor", examples=4))
    assert driven.view.phase == "waiting"
    assert asked(driven(status("b"))) == ["a", "b"]
    assert asked(driven(status("poor", examples=4))) == []


def test_by_recency_who_has_answered_last_waits() -> None:
    driven = opened("a", "b", "c", participants=1, selection="recency", count=9)
    heard: list[str] = []
    for number in range(3):
        (device,) = driven.invited
        version = driven.view.version
        driven.deliver(device, version)
        heard.append(device)
        driven(MergeDone(f"00000{number + 1}-0123456789abcdef"))
    assert sorted(heard) == ["a", "b", "c"]


# Devices that fail


def failed(device: str) -> StatusCame:
    return status(device, activity="failed", problem="the loss is nan")


def test_a_device_that_failed_is_asked_again_after_a_rest_that_grows_but_not_for_ever() -> None:
    driven = opened("a", "b", retries=2, backoff=10.0, deadline=1000.0)
    assert asked(driven(failed("a"), at=0.0)) == []
    assert asked(driven(Tick(), failed("a"), at=9.0)) == []
    assert asked(driven(Tick(), at=10.0)) == ["a"]
    assert asked(driven(Tick(), at=11.0)) == []
    driven(failed("a"), at=12.0)
    assert asked(driven(Tick(), at=31.0)) == []
    assert asked(driven(Tick(), at=32.0)) == ["a"]
    (note,) = only(driven(failed("a"), at=33.0), Note)
    assert note == Note("failed, sits out: the loss is nan", "a")
    assert asked(driven(Tick(), at=900.0)) == []
    assert only(driven.deliver("b"), Merge), "nobody waits for it"


def test_a_device_that_failed_rests_in_the_next_round_too_and_a_good_update_forgives() -> None:
    driven = opened("a", "b", "c", min_devices=2, retries=0, backoff=100.0, count=9)
    driven(failed("a"), at=0.0)
    driven.deliver("b")
    driven.deliver("c")
    assert asked(driven(MergeDone(V1), at=1.0)) == ["b", "c"]
    driven.deliver("b", V1)
    driven.deliver("c", V1)
    v2 = "000002-0123456789abcdef"
    assert asked(driven(MergeDone(v2), at=200.0)) == ["a", "b", "c"]
    driven.deliver("a", v2)
    assert driven.participants["a"].failures == 0


def test_who_failed_too_often_and_has_an_update_all_the_same_may_send_it() -> None:
    driven = opened("a", "b", retries=0, deadline=1000.0)
    driven(failed("a"), at=0.0)
    assert driven.participants["a"].part is Part.FAILED
    assert driven.replies(report("a"), at=1.0) == [("a", "resend")]


def refused(driven: Driven, at: float) -> list[Command]:
    """The device sends an update that does not pass its check."""
    driven.participants["a"].move(Part.INVITED)
    driven(at=at)
    return driven.spoil("a")


def test_a_device_that_keeps_sending_bad_updates_is_quarantined_and_let_out_again() -> None:
    driven = opened("a", "b", quarantine_after=2, quarantine_seconds=50.0, deadline=1000.0)
    assert only(refused(driven, 0.0), Refuse) == [Refuse("a", V0, "not finite", False)]
    assert only(refused(driven, 1.0), Refuse) == [Refuse("a", V0, "not finite", True)]
    driven.participants["a"].move(Part.INVITED)
    (answer,) = only(driven(report("a"), at=50.0), SendReply)
    assert (answer.reply.kind, "quarantine" in answer.reply.reason) == ("refused", True)
    assert driven.replies(report("a"), at=51.5) == [("a", "resend")]


def test_a_quarantine_outlives_the_coordinator() -> None:
    driven = Driven(Recalled(quarantined=frozenset("a")), min_devices=1)
    driven(status("b"))
    assert driven.view.phase == "open"
    assert asked(driven(status("a"))) == []


def test_who_is_in_quarantine_is_not_asked_again_by_a_restart_nor_at_the_deadline() -> None:
    """And no round waits for it."""
    recalled = Recalled(asked_for("ab"), quarantined=frozenset("a"))
    driven = Driven(recalled, min_devices=1)
    assert asked(driven(status("a"), status("b"))) == ["b"]
    assert asked(driven(Tick(), at=60.0)) == ["b"], "the deadline came without a quorum"
    assert asked(driven(status("a"))) == []
    assert only(driven.deliver("b"), Merge)


# Late updates


def test_who_is_sending_at_the_deadline_has_a_grace() -> None:
    driven = opened("a", "b", "c", grace=20.0)
    driven.deliver("a")
    driven(report("b"), chunk("b", 0), at=59.0)
    assert only(driven(Tick(), at=60.0), Merge) == []
    assert only(driven(Tick(), at=79.0), Merge) == []
    commands = driven(chunk("b", 1), chunk("b", 2), at=79.5)
    (merge,) = only(driven(Tick(), at=79.6), Merge) or only(commands, Merge)
    assert set(merge.reports) == {"a", "b"}


def folding(**config: Any) -> Driven:
    """Round 1 is open; b's update of round 0 has not come."""
    driven = opened("a", "b", "c", participants=2, late="fold", **{"count": 9} | config)
    driven.ask("abc")
    driven.deliver("a")
    assert only(driven.deliver("c"), Merge)
    driven(MergeDone(V1))
    return driven


def test_a_late_update_is_folded_into_the_next_round() -> None:
    driven = folding()
    (answer,) = only(driven(report("b")), SendReply)
    assert (answer.reply.kind, answer.reply.chunks) == ("resend", (0, 1, 2))
    commands = driven(*(chunk("b", index) for index in range(3)))
    assert [a.reply for a in only(commands, SendReply)] == [Reply("accepted", V0)]
    assert driven.participants.stored["b"].version == V0


def test_a_device_whose_late_update_was_folded_keeps_its_next_one_for_the_next_round() -> None:
    driven = folding()
    driven.ask("abc")
    driven.deliver("b")
    assert driven(report("b", V1)) == []
    assert only(driven.deliver("a", V1), Merge)
    v2 = "000002-0123456789abcdef"
    driven(MergeDone(v2))
    assert driven.replies(report("b", V1)) == [("b", "resend")]


def test_an_update_that_is_older_than_the_limit_is_late() -> None:
    driven = folding(max_staleness=1)
    for device in ("a", "c"):
        driven.ask(device)
        driven.deliver(device, V1)
    driven(MergeDone("000002-0123456789abcdef"))
    assert driven.replies(report("b")) == [("b", "late")]


def test_who_is_sending_when_the_round_closes_goes_on_if_late_updates_are_folded() -> None:
    driven = opened("a", "b", "c", participants=2, late="fold", count=9)
    driven.ask("abc")
    driven(report("b"), chunk("b", 0))
    driven.deliver("a")
    driven.deliver("c")
    driven(MergeDone(V1))
    assert ("b", "accepted") in driven.replies(chunk("b", 1), chunk("b", 2))


def test_a_buffer_is_full_after_so_many_updates_whoever_sends_them() -> None:
    driven = opened("a", "b", "c", mode="buffered", buffer=2, min_devices=2, count=9)
    driven.deliver("c")
    (merge,) = only(driven.deliver("a"), Merge)
    assert list(merge.reports) == ["a", "c"]
    assert asked(driven(MergeDone(V1))) == ["a", "b", "c"]
    driven.deliver("b")
    (merge,) = only(driven.deliver("a", V1), Merge)
    assert {d: r.version for d, r in merge.reports.items()} == {"a": V1, "b": V0}


# A full disk


def test_nothing_is_taken_while_the_disk_is_full_and_nothing_is_refused() -> None:
    driven = opened("a", "b")
    driven(report("a"), chunk("a", 0))
    commands = driven(Full(True))
    assert only(commands, Discard) == [Discard("a", V0)]
    assert driven(report("a"), chunk("a", 1)) == []
    driven(Full(False))
    driven.deliver("a")
    assert set(driven.participants.stored) == {"a"}


def test_who_is_asked_is_remembered_and_told_once_there_is_space() -> None:
    """That a device is asked was not on disk: a coordinator that starts again would not know."""
    driven = opened("a", "b", "c")
    driven.deliver("a")
    driven(Full(True))
    commands = driven(Full(False))
    assert asked(commands) == ["b", "c"]
    (remembered,) = only(commands, Remember)
    assert list(remembered.asked) == ["a", "b", "c"]
    assert commands.index(remembered) < commands.index(only(commands, Invite)[0])
    assert driven(Full(False)) == []


def test_a_merge_that_was_dropped_for_a_full_disk_is_asked_for_again_after_the_state() -> None:
    """Once the merge is done the state would name a version whose model is not published yet."""
    driven = opened("a", "b")
    driven.deliver("a")
    assert only(driven.deliver("b"), Merge)
    driven(Full(True))
    commands = driven(Full(False))
    assert [type(command) for command in commands] == [PublishState, Note, Judge, Merge]


def test_a_refusal_that_a_full_disk_dropped_is_written_and_told_once_there_is_space() -> None:
    driven = opened("a", "b", "c")
    refused = Refuse("b", V0, "not finite", quarantined=False)
    assert only(driven.spoil("b"), Refuse) == [refused]
    driven(Full(True))
    commands = driven(Full(False))
    reply = SendReply("b", Reply("refused", V0, "not finite"))
    assert commands[1:4] == [Discard("b", V0), refused, reply]
    assert driven(RefusalWritten("b", V0)) == []
    driven(Full(True))
    assert only(driven(Full(False)), Refuse) == []


def test_refusals_of_a_round_that_was_given_up_are_written_again_without_a_reply() -> None:
    driven = opened("a", "b")
    driven.deliver("a")
    (refused,) = only(driven(RolledBack(V1, "a test")), Refuse)
    driven(Full(True))
    commands = driven(Full(False))
    assert only(commands, Refuse) == [refused]
    assert only(commands, SendReply) == []


def test_a_device_whose_update_is_stored_may_have_left_another_one_half_sent() -> None:
    """It began to send its newer update, and sent the late one of the version before instead."""
    late, newer = report("a", V0).report, report("a", V1).report
    recalled = Recalled(
        {V0: {"a": 5}, V1: {"a": 5}},
        accepted={"a": late},
        stored=frozenset("a"),
        recent={V0: 0},
        coming={"a": (newer, frozenset({0}))},
    )
    driven = Driven(recalled, 1, V1, late="fold", count=9, quorum=2)
    assert driven.participants["a"].part is Part.STORED
    assert driven.sending == []


def test_a_device_may_still_rest_when_its_quarantine_is_over() -> None:
    driven = opened("a", "b", quorum=2, quarantine_after=1, quarantine_seconds=100.0, lease=1e6)
    driven.spoil("a")
    driven.participants["a"].backoff_until = 1000.0
    parts = []
    for now in (60.0, 130.0):
        driven(Tick(), at=now)
        parts.append(driven.participants["a"].part)
    assert parts == [Part.QUARANTINED, Part.BACKOFF]
