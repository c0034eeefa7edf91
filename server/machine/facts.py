"""The rounds' input at their start: the run's facts, and what the journal recalls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fededge.wire.messages import Report
from fededge_server.machine.fleet.standings import Standing

__all__ = ["Recalled", "RunFacts"]


@dataclass(frozen=True)
class RunFacts:
    """Settings that stay the same during a run."""

    run: str
    seed: int
    layout: str
    scalars: frozenset[str]
    chunk_bytes: int
    payload_limit: int
    norm_factor: float = 0.0


@dataclass(frozen=True)
class Recalled:
    """The journal's record of the open round and its devices, for a coordinator that restarts.

    `asked` says who was asked for which version, and the examples that each announced. `accepted`
    holds each device's last accepted update, of this round or an earlier one, and `norms` the norm
    of its change; `stored` names those that no version has been made of yet. `recent` are the last
    versions, by round; `coming` are the updates that were on their way, with the chunks that had
    come. `scores` are the accuracies of the versions since the last rest, and `age` is that of the
    newest version in seconds. `standings` are what an operator has ordered for devices, with the
    seconds that are left; `paused`: no round begins, by order of an operator; `changing`: settings
    are ordered that are not in force yet.
    """

    asked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    accepted: Mapping[str, Report] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()
    recent: Mapping[str, int] = field(default_factory=dict)
    quarantined: frozenset[str] = frozenset()
    coming: Mapping[str, tuple[Report, frozenset[int]]] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    scores: tuple[float | None, ...] = ()
    age: float = math.inf
    standings: Mapping[str, tuple[Standing, float]] = field(default_factory=dict)
    paused: bool = False
    changing: bool = False
