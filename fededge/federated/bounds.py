"""Bounds on what one device can do to a model, by what is usual in the fleet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping

__all__ = ["FEWEST", "capped", "norm_limit", "outlier", "suspects"]

FEWEST = 3
"""Devices that it takes to say what is usual: of two, nobody can tell which one lies."""

ENOUGH = 30
"""Devices that are enough to say it for a fleet of any size."""


def norm_limit(norms: Collection[float], factor: float, start: float, fleet: int = 0) -> float:
    """The longest change that is not an outlier: `factor` times the fleet's median.

    Less than half of those heard cannot move the median beyond what the others sent. A third of the
    fleet may be hostile, and may be heard first: so the median counts once two thirds are heard.
    Changes of length 0 are of devices without data, and say nothing.

    Args:
        norms: of the fleet's last changes, one a device.
        factor: 0 sets no limit.
        start: the model's own norm, which stands in while too few devices are heard.
        fleet: how many devices are known, heard or not.
    """
    if not factor:
        return math.inf
    told = [norm for norm in norms if norm > 0]
    trained = fleet - (len(norms) - len(told))
    fewest = max(FEWEST, min(math.ceil(2 * trained / 3), ENOUGH))
    return factor * (statistics.median(told) if len(told) >= fewest else max(start, 1.0))


def outlier(norm: float, limit: float) -> str:
    """Why a change is refused that is too long for this fleet."""
    return (
        f"it changes the model by {norm:.4g}, the fleet's median times robust.norm_factor is "
        f"{limit:.4g}"
    )


def capped(weights: Mapping[str, float], share: float) -> Mapping[str, float]:
    """The same weights, none of them more than `share` of their sum.

    Fewer than three weights, and those that are within the share, stay as they are. What is above
    is lowered to one value c; for k such weights, c = share · (k c + the sum of the others).
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
    """The devices, those first whose numbers are furthest from the others'.

    By orders of magnitude between a number and the median of its kind, the worst one counting.
    """
    names = sorted({name for values in facts.values() for name in values})
    usual = {n: statistics.median(v.get(n, 0.0) for v in facts.values()) for n in names}

    def oddity(device: str) -> float:
        values = facts[device]
        return max((abs(_size(values.get(n, 0.0)) - _size(usual[n])) for n in names), default=0.0)

    return sorted(facts, key=lambda device: (-oddity(device), device))


def _size(number: float) -> float:
    """An order of magnitude with a sign; 0 for 0."""
    return math.copysign(math.log1p(abs(number)), number)
