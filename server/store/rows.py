"""Rows of the journal as values, and readings of them: who was asked, what was told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from fededge.wire.messages import Report
from fededge_server.machine.events import ACCURACY
from fededge_server.machine.settings import Settings

__all__ = [
    "Change",
    "CheckedUpdate",
    "NewSettings",
    "Progress",
    "accuracies_in",
    "asked_in",
    "score_of",
]


@dataclass(frozen=True)
class Progress:
    """Where a run stands: how many rounds are done, and the version they led to.

    `restored` is the earlier version whose model this one repeats, if the run went back to it.
    `date` is in seconds since 1970; None if an earlier version of FedEdge made it.
    """

    rounds_done: int
    version: str
    sha256: str
    accuracy: float | None
    restored: str = ""
    date: float | None = None


class Change(NamedTuple):
    """Something that an operator changed, from the version after `round` rounds on."""

    round: int
    date: float
    kind: str
    what: str


class NewSettings(NamedTuple):
    """Settings that come into force, and the difference in one line; empty if there is none.

    `renewed`: the method's own state begins anew with them.
    """

    settings: Settings
    what: str
    renewed: bool


class CheckedUpdate(NamedTuple):
    """An update that passed its check: the round that takes it, and the norm of its change."""

    device: str
    report: Report
    round: int
    norm: float


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
