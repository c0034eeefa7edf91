"""Whom a round asks: a seeded draw among the devices that are there, or in turn."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Literal

__all__ = ["choose", "expected_turns"]

How = Literal["random", "round-robin", "recency"]


def choose(
    devices: Iterable[str],
    count: int,
    seed: int,
    number: int,
    how: How = "random",
    last: Mapping[str, int] | None = None,
) -> list[str]:
    """`count` devices (0: all), fixed by seed, round and who is there; sorted.

    Args:
        number: of the round.
        how: a draw; one after the other in the order of their ids; or who was heard longest ago,
            a draw among equals.
        last: the round in which each was heard last, for `recency`.
    """
    present = sorted(devices)
    if not count or count >= len(present):
        return present
    draw = random.Random(f"{seed}/{number}")
    if how == "round-robin":
        first = number * count
        return sorted(present[(first + index) % len(present)] for index in range(count))
    if how == "recency":
        heard = last or {}
        draw.shuffle(present)
        return sorted(sorted(present, key=lambda device: heard.get(device, -1))[:count])
    return sorted(draw.sample(present, count))


def expected_turns(rounds: int, participants: int, devices: int) -> int:
    """How often each of the devices takes part in so many rounds on average; at least once.

    Args:
        participants: of each round; 0: all.
    """
    asked = min(participants or devices, devices)
    return max(rounds * asked // devices, 1)
