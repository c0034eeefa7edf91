"""The schedule of exports: the newest model, when the device is idle, or after the interval."""

from __future__ import annotations

import math

from fededge_agent.machine.export_schedule import QUIET, ExportSchedule, ExportState


def test_an_idle_device_exports_soon_after_its_turn() -> None:
    schedule: ExportSchedule[str] = ExportSchedule(interval=100.0)
    assert schedule.due_at == math.inf
    schedule.turn_began()
    schedule.offer("first", 5.0)
    assert schedule.due_at == 105.0  # the turn has not ended
    schedule.turn_ended(5.5)
    assert schedule.due_at == 5.5 + QUIET
    assert schedule.begin() == "first"
    assert schedule.due_at == math.inf
    schedule.done()
    assert schedule.state is ExportState.IDLE


def test_the_newest_model_is_exported_and_the_one_that_waited_is_dropped() -> None:
    schedule: ExportSchedule[int] = ExportSchedule(interval=100.0)
    assert [schedule.offer(number, float(number)) for number in (1, 2, 3)] == [None, 1, 2]
    assert schedule.begin() == 3


def test_a_device_that_is_always_busy_exports_once_an_interval() -> None:
    """A turn every second, each of which begins at once: the first model's waiting time counts."""
    schedule: ExportSchedule[int] = ExportSchedule(interval=10.0)
    exported = []
    for now in range(100):
        schedule.turn_ended(now)
        schedule.offer(now, now)
        schedule.turn_began()
        if schedule.due_at <= now + 0.5:
            exported.append(schedule.begin())
            schedule.done()
    assert exported == [10, 21, 32, 43, 54, 65, 76, 87, 98]


def test_a_model_that_was_left_is_due_as_if_it_had_been_offered() -> None:
    """It need not be handed over before: a later one takes its place."""
    schedule: ExportSchedule[str] = ExportSchedule(interval=10.0)
    schedule.turn_began()
    assert [schedule.left(now) for now in (1.0, 5.0, 10.9)] == [False, False, False]
    assert schedule.due_at == math.inf
    assert schedule.left(11.0)
    schedule.offer("newest", 11.5)
    assert schedule.due_at == 11.0
    schedule.begin()
    assert not schedule.left(12.0)


def test_a_model_that_comes_during_an_export_waits_for_its_end() -> None:
    schedule: ExportSchedule[str] = ExportSchedule(interval=1.0)
    schedule.offer("first", 0.0)
    schedule.begin()
    assert schedule.offer("second", 0.5) is None
    assert schedule.offer("third", 5.0) == "second"
    assert schedule.due_at == math.inf  # one export at a time
    schedule.done()
    assert schedule.due_at <= 1.5  # it has waited since the second one came
    assert schedule.begin() == "third"
