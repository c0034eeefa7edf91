"""Readings of the journal's rows: who was asked, and the accuracies that were told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

from fededge_server.machine.events import ACCURACY

__all__ = ["accuracies_in", "asked_in", "score_of"]


def asked_in(rows: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """The devices that were asked for each version: a later row adds to the earlier ones."""
    found: dict[str, dict[str, int]] = {}
    for version, devices in rows:
        found.setdefault(version, {}).update(msgspec.json.decode(devices, type=dict[str, int]))
    return found


def score_of(accuracy: float | None, reports: Mapping[str, Mapping[str, float]]) -> float | None:
    """A version's accuracy: our own evaluation, else the mean of what its devices report."""
    if accuracy is not None:
        return accuracy
    told = [scalars[ACCURACY] for scalars in reports.values() if ACCURACY in scalars]
    return sum(told) / len(told) if told else None


def accuracies_in(reports: str | None) -> dict[str, float]:
    told = json.loads(reports or "{}")
    return {d: scalars[ACCURACY] for d, scalars in told.items() if ACCURACY in scalars}
