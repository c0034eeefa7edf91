"""Client selection."""

from __future__ import annotations

import random

from fededge.config import RoundsConfig
from fededge.federated.selection import choose, expected_turns

DEVICES = [f"device-{index:02d}" for index in range(20)]


def test_a_draw_depends_on_seed_round_and_who_is_there_and_on_nothing_else() -> None:
    shuffled = DEVICES.copy()
    random.Random(1).shuffle(shuffled)
    random.seed(5)
    drawn = choose(DEVICES, 5, seed=3, number=7)
    assert choose(shuffled, 5, seed=3, number=7) == drawn == sorted(drawn)
    assert len(set(drawn)) == 5
    assert choose(DEVICES, 5, seed=3, number=8) != drawn
    assert choose(DEVICES, 5, seed=4, number=7) != drawn


def test_all_are_asked_if_no_number_is_given_or_there_are_not_more() -> None:
    for count in (0, 20, 21):
        assert choose(reversed(DEVICES), count, seed=0, number=0) == DEVICES


def test_over_many_rounds_everybody_is_asked_about_equally_often() -> None:
    asked = [device for number in range(2000) for device in choose(DEVICES, 5, 0, number)]
    counts = [asked.count(device) for device in DEVICES]
    assert min(counts) > 420
    assert max(counts) < 580


def test_round_robin_goes_through_all_in_order() -> None:
    asked = [choose("abcde", 2, 0, number, "round-robin") for number in range(5)]
    assert asked == [["a", "b"], ["c", "d"], ["a", "e"], ["b", "c"], ["d", "e"]]


def test_by_recency_those_who_were_heard_longest_ago_are_asked_first() -> None:
    last = {"a": 3, "b": 1, "c": 2, "d": 3}
    assert choose("abcd", 2, 0, 4, "recency", last) == ["b", "c"]
    assert choose("abcde", 2, 0, 4, "recency", last) == ["b", "e"]
    drawn = {tuple(choose("abcd", 1, seed, 0, "recency")) for seed in range(50)}
    assert len(drawn) == 4


def test_the_expected_number_of_turns_of_a_device() -> None:
    """Q · T rounded down, and at least once: 8 of 20 devices in 20 rounds take part 8 times."""
    assert expected_turns(20, 8, 20) == 8
    assert expected_turns(150, 20, 100) == 30
    assert expected_turns(7, 1, 2) == 3
    assert expected_turns(3, 1, 20) == 1
    assert expected_turns(20, 0, 20) == expected_turns(20, 50, 20) == 20


def test_a_coordinator_expects_what_a_simulation_of_its_fleet_does() -> None:
    def turns(**settings: object) -> int:
        return RoundsConfig(count=20, min_devices=20, **settings).expected_turns  # type: ignore[arg-type]

    assert turns() == 20
    assert turns(participants=8) == turns(share=0.4) == turns(mode="buffered", buffer=8) == 8
    assert turns(share=0.33) == 7  # 7 of the 20 are asked
