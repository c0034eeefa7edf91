"""The states of a device at the coordinator: only the moves in the table are possible."""

from __future__ import annotations

import itertools

import pytest

from fededge.config import RoundsConfig
from fededge_server.machine.fleet.eligibility import Eligibility
from fededge_server.machine.fleet.participants import ForbiddenMoveError, Participant, Participants
from fededge_server.machine.fleet.parts import PARTS, Part


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


@pytest.mark.parametrize(("asked", "after"), [(5, Part.FAILED), (None, Part.IDLE)])
@pytest.mark.parametrize("before", Part)
def test_a_device_is_set_aside_from_any_part_unless_its_update_is_stored(
    before: Part, asked: int | None, after: Part
) -> None:
    one = Participant("a", part=before, asked=asked)
    one.set_aside()
    assert one.part is (Part.STORED if before is Part.STORED else after)


def test_every_part_can_be_reached_and_left() -> None:
    assert PARTS.keys() == {*Part}
    assert {after for moves in PARTS.values() for after in moves} == {*Part}
    assert all(Part.IDLE in moves for part, moves in PARTS.items() if part is not Part.IDLE)


def test_devices_are_found_by_their_part_in_the_order_of_their_ids() -> None:
    participants = Participants(Eligibility(RoundsConfig()))
    for device in ("c", "a", "b"):
        participants.of(device).move(Part.INVITED)
    participants["b"].move(Part.FAILED)
    assert [one.device for one in participants.doing(Part.INVITED)] == ["a", "c"]
    assert [one.device for one in participants.doing(Part.INVITED, Part.FAILED)] == ["a", "b", "c"]


def test_a_question_about_a_device_changes_nothing() -> None:
    one = Participant("a", backoff_until=5.0, quarantined_until=5.0)
    assert one.backs_off(4.0)
    assert not one.backs_off(6.0)
    assert not one.quarantined(6.0)
    assert (one.backoff_until, one.quarantined_until) == (5.0, 5.0)
