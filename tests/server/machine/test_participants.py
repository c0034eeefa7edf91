"""The states of a device at the coordinator: only the moves in the table are possible."""

from __future__ import annotations

import itertools

import pytest

from fededge_server.machine.participants import (
    PARTS,
    ForbiddenMoveError,
    Part,
    Participant,
    Participants,
)


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(Part, 2)])
def test_a_move_is_in_the_table_or_refused(before: Part, after: Part) -> None:
    one = Participant("a", part=before)
    if after in PARTS[before]:
        one.move(after)
        assert one.part is after
        return
    with pytest.raises(ForbiddenMoveError, match=f"a: {before.value} -> {after.value}"):
        one.move(after)
    assert one.part is before


def test_every_part_can_be_reached_and_left() -> None:
    assert PARTS.keys() == {*Part}
    assert {after for moves in PARTS.values() for after in moves} == {*Part}
    assert all(Part.IDLE in moves for part, moves in PARTS.items() if part is not Part.IDLE)


def test_devices_are_found_by_their_part_in_the_order_of_their_ids() -> None:
    participants = Participants()
    for device in ("c", "a", "b"):
        participants.of(device).move(Part.INVITED)
    participants["b"].move(Part.FAILED)
    assert [one.device for one in participants.doing(Part.INVITED)] == ["a", "c"]
    assert [one.device for one in participants.doing(Part.INVITED, Part.FAILED)] == ["a", "b", "c"]


def test_a_question_about_a_device_changes_nothing() -> None:
    one = Participant("a", rests_until=5.0, quarantined_until=5.0)
    assert one.rests(4.0)
    assert not one.rests(6.0)
    assert not one.quarantined(6.0)
    assert (one.rests_until, one.quarantined_until) == (5.0, 5.0)
