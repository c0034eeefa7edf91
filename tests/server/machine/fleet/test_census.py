"""The census is what a count over all records would find, whatever happens and however late."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fededge.config import RoundsConfig
from fededge_server.machine.events import Remember, Remembered
from fededge_server.machine.fleet.census import Census, Group
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import AWAITED, OUT, Attendance, Part
from fededge_server.machine.fleet.standings import Standing
from fededge_server.machine.rounds.rounds import Rounds
from tests.server.machine.test_any_events import Anything
from tests.server.machine.test_rounds import Driven, only, status

Condition = Callable[[Participant, RoundsConfig, float], bool]


def enough(o: Participant, c: RoundsConfig, now: float) -> bool:
    told = o.status is not None and o.status.examples >= c.min_examples
    return o.attendance is Attendance.PRESENT and told


def held(o: Participant, now: float) -> bool:
    backs_off = o.backoff_until is not None and now < o.backoff_until
    return backs_off or now < o.quarantined_until or ordered_off(o, now)


def ordered_off(o: Participant, now: float) -> bool:
    """True if an operator has drained it, put it in quarantine, or rested it until later."""
    if o.standing is Standing.RESTED:
        return now < o.rested_until
    return o.standing in (Standing.DRAINED, Standing.QUARANTINED)


def leased(o: Participant, c: RoundsConfig, now: float) -> bool:
    return o.heard is None or now < o.heard + c.lease


def eligible(o: Participant, c: RoundsConfig, now: float) -> bool:
    return enough(o, c, now) and not held(o, now)


def awaited(o: Participant) -> bool:
    return o.asked is not None and o.part in AWAITED


def backed_off(o: Participant, now: float) -> bool:
    return o.backoff_until is not None and o.backoff_until <= now


CONDITIONS: dict[Group, Condition] = {
    Group.KNOWN: lambda o, c, now: o.known,
    Group.UNLISTED: lambda o, c, now: o.known and not o.listed,
    Group.ONLINE: lambda o, c, now: o.attendance is not Attendance.ABSENT,
    Group.GONE: lambda o, c, now: o.attendance is not Attendance.ABSENT and not leased(o, c, now),
    Group.THERE: lambda o, c, now: o.attendance is Attendance.RESTING or enough(o, c, now),
    Group.ELIGIBLE: eligible,
    Group.FRESH: lambda o, c, now: (
        o.attendance is Attendance.PRESENT
        and o.status is not None
        and (o.trained is None or o.trained != o.status.examples)
    ),
    Group.FREE: lambda o, c, now: (
        eligible(o, c, now)
        and o.status is not None
        and o.status.activity == "ready"
        and (o.part, o.asked) == (Part.IDLE, None)
    ),
    Group.QUARANTINED: lambda o, c, now: (
        now < o.quarantined_until or o.standing is Standing.QUARANTINED
    ),
    Group.INVITED: lambda o, c, now: o.asked is not None,
    Group.UNWRITTEN: lambda o, c, now: o.asked is not None and o.asked != o.written,
    Group.PLACED: lambda o, c, now: o.asked is not None and o.part not in OUT,
    Group.WANTED: lambda o, c, now: o.asked is not None and o.part is not Part.EXCUSED,
    Group.AWAITED: lambda o, c, now: awaited(o),
    Group.EXPECTED: lambda o, c, now: awaited(o) and leased(o, c, now),
    Group.ANSWERED: lambda o, c, now: o.asked is not None and o.part is Part.STORED,
    Group.RETRIED: lambda o, c, now: (
        o.asked is not None
        and o.attendance is Attendance.PRESENT
        and o.part in (Part.INVITED, Part.BACKOFF)
        and backed_off(o, now)
        and not ordered_off(o, now)
    ),
}


def check(machine: Rounds, now: float) -> set[Group | Part]:
    """Compare every group with a recount; the groups that are not empty."""
    everyone = sorted(machine.participants.items())
    machine.participants.census.advance(now)
    for group in Group:
        found = [one.device for one in machine.participants.where(group)]
        assert found == [n for n, o in everyone if CONDITIONS[group](o, machine.config, now)], group
        assert machine.participants.count(group) == len(found)
    for part in Part:
        found = [one.device for one in machine.participants.doing(part)]
        assert found == [n for n, o in everyone if o.part is part], part
    return {key for key in [*Group, *Part] if machine.participants.count(key)}


@pytest.mark.parametrize("seed", range(40))
def test_the_groups_are_what_a_recount_finds(seed: int) -> None:
    world, draw = Anything(seed), random.Random(seed)
    for _ in range(300):
        world.step()
        if draw.random() < 0.01:
            world.restart()
        if draw.random() < 0.5:
            check(world.machine, world.now)
        if draw.random() < 0.1:  # between two events: the shell asks for a view
            world.now += draw.choice((1.0, 30.0, 300.0))
            world.machine.view(world.now)
            check(world.machine, world.now)


def test_random_events_fill_every_group() -> None:
    seen: set[Group | Part] = set()
    for seed in range(40):
        world = Anything(seed)
        for _ in range(300):
            world.step()
            seen |= check(world.machine, world.now)
    assert seen == {*Group, *Part}


@dataclass
class Lamp:
    """A record that is lit until a time."""

    device: str
    until: float


def test_a_record_changes_its_group_when_its_time_comes_and_not_before() -> None:
    lit, dark = Group.ONLINE, Group.GONE
    census: Census[Lamp] = Census(
        lambda o, now: [lit if now < o.until else dark], lambda o: [o.until]
    )
    lamps = {name: Lamp(name, until) for name, until in (("a", 5.0), ("b", 7.0), ("c", 9.0))}
    census.changed |= lamps
    census.advance(0.0)
    assert census.count(lit) == 3
    lamps["c"].until = 6.0  # an earlier time than it was put down for
    census.changed["c"] = lamps["c"]
    lamps["a"].until = 8.0  # a later one
    census.changed["a"] = lamps["a"]
    assert census.count(lit) == 3
    for now, names in ((5.0, "abc"), (6.0, "ab"), (7.0, "a"), (8.0, "")):
        census.advance(now)
        assert "".join(one.device for one in census.of(lit)) == names
        assert census.count(dark) == 3 - len(names)
    assert len(census.times) <= 1, "no time is left but the one that was given up"


def test_an_entry_that_the_journal_has_not_confirmed_is_written_again() -> None:
    driven = Driven(min_devices=2)
    first = only(driven(status("a"), status("b")), Remember)
    again = only(driven(status("c")), Remember)
    assert [remember.asked for remember in (*first, *again)] == [
        {"a": 5, "b": 5},
        {"a": 5, "b": 5, "c": 5},
    ]
    driven(Remembered(again[0].version, again[0].asked, again[0].known))
    (last,) = only(driven(status("d")), Remember)
    assert (last.asked, last.known) == ({"d": 5}, ("d",)), "only what the journal does not have"


def test_an_answer_about_an_earlier_version_confirms_nothing_of_this_one() -> None:
    driven = Driven(min_devices=2)
    driven(status("a"), status("b"), Remembered("another version", {"a": 5, "b": 5}, ("a", "b")))
    (remember,) = only(driven(status("c")), Remember)
    assert (remember.asked, remember.known) == ({"a": 5, "b": 5, "c": 5}, ("c",))
