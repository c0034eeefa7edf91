"""Client selection: a seeded draw among the devices present, in turn, or by recency."""

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
    """Select `count` devices (0: all); deterministic for seed, round and devices. Sorted by id.

    Args:
        devices: the devices present.
        count: number of devices to select.
        seed: seed of the draw.
        number: number of the round.
        how: a draw, in turn by id, or the longest not heard from first with a draw among equals.
        last: for `recency`, the last round in which each device was heard.
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
    """The average number of rounds in which a device participates; at least 1.

    Args:
        rounds: number of rounds.
        participants: devices per round; 0: all.
        devices: number of devices.
    """
    asked = min(participants or devices, devices)
    return max(rounds * asked // devices, 1)
