"""An enrolled hostile device can only send bad updates in its own name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fededge.wire.messages import Reply
from fededge_server.machine.events import (
    Command,
    Judge,
    Merge,
    MergeDone,
    Note,
    Refuse,
    RolledBack,
    SendReply,
    Tick,
)
from fededge_server.machine.facts import Recalled
from tests.server.machine.test_rounds import (
    FACTS,
    V0,
    V1,
    Driven,
    asked,
    gone,
    only,
    opened,
    report,
    status,
)

V2 = "000002-0123456789abcdef"


def third(driven: Driven) -> Driven:
    """Rounds 0 and 1 are done, by a and b."""
    for version, following in ((V0, V1), (V1, V2)):
        for device in "ab":
            driven.deliver(device, version)
        driven(MergeDone(following, ("a", "b")))
    return driven


# Which updates may be merged


def test_an_older_version_is_late_whether_the_device_was_asked_or_not() -> None:
    driven = third(opened("a", "b", "c", participants=2, quorum=1, min_devices=3, count=9))
    for device in "abc":
        assert driven.replies(report(device, V1)) in ([(device, "late")], [(device, "accepted")])
        assert driven.sending == []


def test_a_device_that_was_not_asked_for_an_old_version_is_refused_even_with_folding() -> None:
    driven = opened("a", "b", min_devices=2, late="fold", count=9)
    driven.deliver("a")
    driven.deliver("b")
    driven(MergeDone(V1, ("a", "b")), status("c"))
    (answer,) = only(driven(report("c", V0)), SendReply)
    assert (answer.reply.kind, answer.reply.reason) == (
        "refused",
        f"the device was not asked for version {V0}",
    )


def test_the_journal_says_who_was_asked_when_the_coordinator_starts_again() -> None:
    recalled = Recalled({V0: {"a": 5, "b": 5}, V1: {"a": 5}}, recent={V0: 0})
    driven = Driven(recalled, 1, V1, late="fold", count=9)
    driven(Tick())
    assert driven.replies(report("b", V0)) == [("b", "resend")]
    assert driven.replies(report("c", V0)) == [("c", "refused")]
    assert driven.replies(report("b", V1)) == [("b", "refused")]


# The weight of its claims


def test_more_examples_than_the_device_announced_are_refused() -> None:
    driven = opened("a", "b")
    (answer,) = only(driven(report("a", scalars={"examples": 1e15})), SendReply)
    assert answer.reply.kind == "refused"
    assert "claims 1e+15 examples, the device announced 5" in answer.reply.reason
    assert driven.replies(report("a")) == [("a", "resend")], "its good update is taken"


def test_a_device_that_suddenly_announces_far_more_is_named() -> None:
    driven = opened("a", "b")
    notes = only(driven(status("a", examples=5000)), Note)
    assert [note.text for note in notes] == ["announces 5000 examples, 5 before"]
    assert only(driven(status("a", examples=5001)), Note) == []


# Bad reports and bad updates


def test_bad_reports_do_no_harm_to_the_device_they_name() -> None:
    """On an open broker anybody can send them in its name."""
    driven = opened("a", "b", quarantine_after=3)
    for _ in range(10):
        assert driven.replies(report("a", scalars={"examples": -1.0})) == [("a", "refused")]
    assert driven.view.quarantined == 0
    driven.deliver("b")
    assert only(driven.deliver("a"), Merge)


def test_an_update_that_no_version_can_be_made_with_is_refused_and_its_device_put_away() -> None:
    driven = opened("a", "b", "c")
    for device in "abc":
        driven.deliver(device)
    assert driven.view.phase == "merging"
    reason = "the next model is not finite"
    commands = driven(MergeDone(V1, ("a", "c"), {"b": reason}))
    assert SendReply("b", Reply("refused", V0, reason)) in commands
    assert only(commands, Refuse) == [], "the journal has it already"
    assert driven.invited == ["a", "c"]
    assert driven.replies(report("b", V1)) == [("b", "refused")]


def test_a_device_in_quarantine_does_not_hold_up_the_others() -> None:
    driven = opened("a", "b", "c", quarantine_after=1)
    driven.deliver("a")
    driven.deliver("b")
    driven.spoil("c")
    assert asked(driven(MergeDone(V1, ("a", "b")))) == ["a", "b"], "though three are to be there"


# Changes that are too long


def bounded(**config: Any) -> Driven:
    facts = replace(FACTS, norm_factor=10.0)
    driven = Driven(facts=facts, **({"min_devices": 4, "count": 9} | config))
    driven(*(status(device) for device in "abcd"))
    return driven


def deliver(driven: Driven, device: str, norm: float) -> list[Command]:
    driven.norms[device] = norm
    return driven.deliver(device)


def test_the_first_changes_of_a_run_are_judged_side_by_side() -> None:
    driven = bounded()
    for device, norm in (("a", 1.0), ("b", 1.2), ("c", 0.9)):
        deliver(driven, device, norm)
    commands = deliver(driven, "d", 1e4)
    (refused,) = only(commands, Refuse)
    assert (refused.device, refused.quarantined) == ("d", True)
    (merge,) = only(commands, Merge)
    assert sorted(merge.reports) == ["a", "b", "c"]


def test_later_changes_are_bounded_by_what_the_fleet_sent_before() -> None:
    driven = bounded()
    for device, norm in (("a", 1.0), ("b", 1.2), ("c", 0.9), ("d", 1.0)):
        deliver(driven, device, norm)
    assert driven.machine.limit(start=1.0) == 10.0, "nothing is known before a merge"
    driven(MergeDone(V1, tuple("abcd")))
    assert driven.machine.limit(start=1e9) == pytest.approx(10.0)


def test_tiny_changes_that_come_first_do_not_make_others_outliers() -> None:
    driven = bounded()
    for device, norm in (("a", 1e-9), ("b", 1.2), ("c", 0.9)):
        deliver(driven, device, norm)
    commands = deliver(driven, "d", 1.0)
    assert only(commands, Refuse) == []
    assert only(commands, Merge)


def test_hostile_devices_that_are_heard_first_do_not_make_others_outliers() -> None:
    """Two of six send tiny changes, and a round of three is over before most others are heard."""
    driven = bounded(participants=3, over_select=2.0)
    driven(status("e"), status("f"))
    for device, norm in (("a", 1e-9), ("b", 1e-9)):
        deliver(driven, device, norm)
    commands = deliver(driven, "c", 1.0)
    assert only(commands, Refuse) == []
    assert only(commands, Merge)
    driven(MergeDone(V1, ("a", "b", "c")))
    assert driven.machine.limit(start=5.0) == 50.0


# Silence


def test_a_round_does_not_wait_for_a_silent_device_until_the_deadline() -> None:
    """Two thirds have answered after 4 s: the third has five times that."""
    driven = opened("a", "b", "c", deadline=600.0, slack=5.0)
    driven(Tick(), at=4.0)
    driven.deliver("a")
    driven.deliver("b")
    assert only(driven(status("c", activity="training"), at=19.9), Merge) == []
    (merge,) = only(driven(Tick(), at=20.0), Merge)
    assert sorted(merge.reports) == ["a", "b"]


def test_it_loses_its_place_and_each_time_for_longer() -> None:
    driven = opened("a", "b", "c", deadline=600.0, slack=5.0, backoff=1.0, count=99, lease=1e6)
    now, version, silences = 0.0, V0, []
    for number in range(1, 40):
        for device in "ab":
            driven.deliver(device, version)
        if driven.view.phase == "open":
            now += 10.0
            silences.append(number)
            driven(Tick(), at=now)
        assert driven.view.phase == "merging"
        version = f"{number:06d}-0123456789abcdef"
        driven(MergeDone(version, ("a", "b")))
        now += 1.0
        driven(Tick(), at=now)
    assert len(silences) <= 3, "of 39 rounds it holds up three"


def test_a_silent_device_loses_its_place_at_a_deadline_without_a_quorum_too() -> None:
    """Two of the three asked devices are silent: the round is extended, and others end it."""
    some = {"participants": 3, "quorum": 2, "selection": "recency"}
    driven = opened(*"abcde", deadline=60.0, count=9, **some)
    honest, *silent = driven.invited
    driven.deliver(honest)
    everybody = [status(device, activity="training") for device in "abcde"]
    commands = driven(*everybody, Tick(), at=60.0)
    others = sorted({*"abcde"} - {honest})
    assert asked(commands) == others, "also those who were silent"
    for device in sorted({*others} - {*silent}):
        commands = driven.deliver(device)
    assert only(commands, Merge)
    driven(MergeDone(V1, (honest,)))
    assert not {*silent} & {*driven.invited}


def test_a_retained_status_alone_is_a_lease_that_runs_out() -> None:
    driven = Driven(min_devices=2, deadline=600.0, lease=90.0)
    kept = replace(status("c"), retained=True)
    driven(kept, status("a"), at=0.0)
    assert driven.invited == ["a", "c"]
    driven.deliver("a")
    assert only(driven(status("a"), Tick(), at=89.0), Merge) == []
    commands = driven(Tick(), at=90.0)
    assert [n.device for n in only(commands, Note) if "no sign of life" in n.text] == ["c"]
    assert only(commands, Merge)
    driven(MergeDone(V1, ("a",)))
    assert driven(kept) == [], "the broker tells it once more"
    assert "c" not in driven.present


def test_a_round_waits_for_a_device_that_left_as_long_as_its_lease() -> None:
    driven = opened("a", "b", deadline=600.0, lease=90.0, quorum=2)
    driven.deliver("a")
    driven(gone("b"), Tick(), at=100.0)
    assert driven.view.phase == "open"
    assert asked(driven(status("b"), at=101.0)) == ["b"]


def test_a_slow_device_is_still_accepted_before_the_cutoff() -> None:
    driven = opened("a", "b", "c", deadline=600.0, slack=5.0)
    driven.deliver("a")
    driven.deliver("b")
    assert only(driven.deliver("c"), Merge)


# Going back


def test_a_run_that_goes_back_gives_up_what_the_round_has() -> None:
    driven = opened("a", "b", late="fold", count=9)
    driven.deliver("a")
    driven(report("b"))
    commands = driven(RolledBack(V1, "its accuracy is 10.0%"))
    assert [(r.device, r.quarantined) for r in only(commands, Refuse)] == [("a", False)]
    assert ("b", "late") in [(a.device, a.reply.kind) for a in only(commands, SendReply)]
    assert (driven.view.round, driven.view.version) == (1, V1)
    assert driven.replies(report("b", V0)) == [("b", "late")], "of a version that is given up"


def test_a_round_says_how_many_could_train_from_its_version() -> None:
    driven = opened("a", "b", "c", retries=0)
    driven(status("c", activity="failed", problem="not finite"))
    driven.deliver("a")
    (judge,) = only(driven.deliver("b"), Judge)
    assert judge == Judge(V0, 3, 1, {})


def test_a_device_in_backoff_is_not_silent_and_is_asked_again() -> None:
    """Else each deadline without a quorum would make its rest longer than the next one."""
    driven = opened("a", "b", deadline=60.0, quorum=2, backoff=100.0, retries=5, lease=1e6)
    driven.deliver("a")
    driven(status("b", activity="failed", problem="the disk is full"), at=1.0)
    assert asked(driven(Tick(), at=60.0)) == []
    assert asked(driven(Tick(), at=101.0)) == ["b"]
