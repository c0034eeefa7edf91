"""Measures each device's share of a version from the models alone, not from its reports."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fededge.flat import Vector

__all__ = ["shares"]

SHORTEST = 0.01
"""Changes below this share of the longest one are lost in the rounding of the others."""


def shares(before: Vector, after: Vector, updates: Mapping[str, Vector]) -> dict[str, float]:
    """The weight that each update has in a step from one model to the next.

    They solve Σ share · (update - before) = after - before, by least squares. Updates that are too
    near to the model before have no share that can be measured, and are left out of the result.
    """
    changes = {device: model.astype(np.float64) - before for device, model in updates.items()}
    norms = {device: float(np.linalg.norm(change)) for device, change in changes.items()}
    long = [device for device in sorted(norms) if norms[device] > SHORTEST * max(norms.values())]
    if not long:
        return {}
    directions = np.stack([changes[device] / norms[device] for device in long], axis=1)
    found = np.linalg.lstsq(directions, after.astype(np.float64) - before, rcond=1e-6)[0]
    return {device: float(f) / norms[device] for device, f in zip(long, found, strict=True)}
