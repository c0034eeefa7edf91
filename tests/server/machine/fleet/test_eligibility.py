"""Eligibility: growing backoffs, and a quarantine that rare good updates do not avert."""

from __future__ import annotations

from fededge.config import RoundsConfig
from fededge_server.machine.fleet.eligibility import LONGEST_SILENCE, Eligibility
from fededge_server.machine.fleet.participants import Participant


def test_bad_bad_good_ends_in_quarantine() -> None:
    eligibility = Eligibility(RoundsConfig(quarantine_after=3))
    a = Participant("a")
    quarantined = []
    for turn in range(9):
        if turn % 3 == 2:
            eligibility.well(a)
        else:
            quarantined.append(eligibility.refused(a, now=0.0))
    assert any(quarantined)
    assert quarantined.index(True) == 2, "at the third refusal"


def test_a_rare_refusal_never_does() -> None:
    eligibility = Eligibility(RoundsConfig(quarantine_after=3))
    a = Participant("a")
    for turn in range(100):
        if turn % 4 == 0:
            assert not eligibility.refused(a, now=0.0)
        else:
            eligibility.well(a)


def test_a_good_update_halves_the_turns_that_were_given_up() -> None:
    """Three of four turns given up, however early: each time the device stays out for longer."""
    eligibility = Eligibility(RoundsConfig(backoff=30.0))
    a, pauses = Participant("a"), []
    for _ in range(4):
        for _ in range(3):
            eligibility.gave_up(a, took=10.0, late=False, now=0.0)
        pauses.append(a.backoff_until)
        eligibility.well(a)
    assert pauses == [None, 30.0, 60.0, 60.0]


def test_a_turn_that_is_given_up_late_is_a_silence() -> None:
    eligibility = Eligibility(RoundsConfig(backoff=30.0))
    a = Participant("a")
    eligibility.gave_up(a, took=100.0, late=True, now=50.0)
    assert (a.backoff_until, a.silences, a.given_up) == (150.0, 1, 1)


def test_a_silent_device_backs_off_twice_as_long_each_time_and_at_least_its_round() -> None:
    eligibility = Eligibility(RoundsConfig(backoff=30.0))
    a = Participant("a")
    pauses = [eligibility.missed(a, took=100.0, now=0.0) for _ in range(12)]
    assert pauses[:4] == [100.0, 200.0, 400.0, 800.0]
    assert pauses[-1] == LONGEST_SILENCE
    assert eligibility.missed(Participant("b"), took=1.0, now=0.0) == 30.0


def test_an_answer_in_between_forgives_half() -> None:
    eligibility = Eligibility(RoundsConfig(backoff=10.0))
    a = Participant("a")
    for _ in range(4):
        eligibility.missed(a, took=1.0, now=0.0)
    eligibility.well(a)
    assert eligibility.missed(a, took=1.0, now=0.0) == 40.0
