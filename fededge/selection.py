"""Whom a round asks: a seeded draw among the devices that are there."""

from __future__ import annotations

import random
from collections.abc import Iterable

__all__ = ["choose"]


def choose(devices: Iterable[str], count: int, seed: int, number: int) -> list[str]:
    """`count` devices (0: all), fixed by seed, round and who is there; sorted."""
    present = sorted(devices)
    if not count or count >= len(present):
        return present
    return sorted(random.Random(f"{seed}/{number}").sample(present, count))
