"""Bounds on the influence of one device, relative to the rest of the fleet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping

__all__ = ["FEWEST", "capped", "norm_limit", "outlier", "suspects"]

FEWEST = 3
"""Fewest devices for a median: of two, nobody can tell which one is wrong."""

ENOUGH = 30
"""Devices that give a reliable median for a fleet of any size."""


def norm_limit(norms: Collection[float], factor: float, start: float, fleet: int = 0) -> float:
    """The largest norm of a change that is not an outlier: `factor` times the fleet's median.

    A hostile minority cannot move the median beyond the norms of the others. Up to a third of the
    fleet may be hostile and may report first, so the median counts only once two thirds have
    reported. Norms of 0 come from devices without data and are ignored.

    Args:
        norms: norm of the last change of each device.
        factor: 0 sets no limit.
        start: the model's own norm, used while too few devices have reported.
        fleet: number of known devices, whether they have reported or not.
    """
    if not factor:
        return math.inf
    positive = [norm for norm in norms if norm > 0]
    trained = fleet - (len(norms) - len(positive))
    fewest = max(FEWEST, min(math.ceil(2 * trained / 3), ENOUGH))
    return factor * (statistics.median(positive) if len(positive) >= fewest else max(start, 1.0))


def outlier(norm: float, limit: float) -> str:
    """The reason for refusing a change that is too large for this fleet."""
    return (
        f"it changes the model by {norm:.4g}, the fleet's median times robust.norm_factor is "
        f"{limit:.4g}"
    )


def capped(weights: Mapping[str, float], share: float) -> Mapping[str, float]:
    """Cap the weights so that none is more than `share` of their sum.

    Fewer than three weights, and weights within the share, stay as they are. The k weights above it
    are lowered to one value c = share · (k c + the sum of the others).
    """
    ordered = sorted((weight for weight in weights.values() if weight), reverse=True)
    share = max(share, 1 / max(len(ordered), 1))
    if len(ordered) < FEWEST or ordered[0] <= share * sum(ordered):
        return weights
    most = ordered[-1]
    for k in range(1, math.ceil(1 / share)):
        most = share * sum(ordered[k:]) / (1 - k * share)
        if ordered[k] <= most:
            break
    return {device: min(weight, most) for device, weight in weights.items()}


def suspects(facts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The devices, sorted by how far their numbers are from the others', the furthest first.

    The distance is in orders of magnitude from the median of each number; the largest one counts.
    """
    names = sorted({name for values in facts.values() for name in values})
    usual = {n: statistics.median(v.get(n, 0.0) for v in facts.values()) for n in names}

    def oddity(device: str) -> float:
        values = facts[device]
        return max((abs(_size(values.get(n, 0.0)) - _size(usual[n])) for n in names), default=0.0)

    return sorted(facts, key=lambda device: (-oddity(device), device))


def _size(number: float) -> float:
    """The order of magnitude, with the number's sign; 0 for 0."""
    return math.copysign(math.log1p(abs(number)), number)
