"""The invariants of every run under faults, checked as it happens.

It sees what the broker carries, what the agents save and what the coordinator's journal says. It
takes no part: no process reads anything from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fededge.flat import Vector
from fededge.wire.messages import Reply, Report
from fededge_server.machine.fleet.orders import (
    ForgetOrder,
    QuarantineOrder,
    ReleaseOrder,
    RevokeOrder,
)
from fededge_server.store import Progress

__all__ = ["BrokenError", "Merge", "Oracle"]

Turn = tuple[str, str]
"""A device, and the version that it trained from."""


Read = tuple[str, str]
"""The version that an update was trained from, and the SHA-256 of its bytes."""


LARGEST = 65504.0
"""The largest number that a model may hold: float16 holds no more."""

OWNED = 0.9
"""A device whose share of a version is larger owns the version."""

UNSEEN = ""
"""Stands for private state that the oracle has not seen: its agent was killed while saving it."""


class BrokenError(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Merge:
    """A merge: the version before, the new version, and each device's update."""

    base: str
    version: str
    updates: Mapping[str, Read]


@dataclass
class Oracle:
    """Checks the invariants. If updates are folded, they may be for an earlier version.

    `excused` are updates whose file was damaged on the coordinator's disk: no other one has them.
    So are those that an operator had dropped, or whose version was given up.
    `learnt` is each device's private state after the last update of its that was accepted; where
    files rot it may be one turn behind.

    Nothing is promised to `hostile` devices: what they send may be merged, or refused whatever they
    heard before. `claims` are their reports. No other device must suffer from them.

    `ordered` are devices whose updates an operator has had dropped: they may train the same turn
    again, from other private state. Those in `barred` are in quarantine, and the turns in `void`
    are those of a device that was forgotten: no version may be made with them.
    """

    folds: bool = False
    rots: bool = False
    hostile: frozenset[str] = frozenset()
    progress: Progress | None = None
    merges: list[Merge] = field(default_factory=list)
    reports: dict[Turn, Report] = field(default_factory=dict)
    turns: Counter[Turn] = field(default_factory=Counter)
    acknowledged: set[Turn] = field(default_factory=set)
    merged: dict[Turn, str] = field(default_factory=dict)
    refused: set[Turn] = field(default_factory=set)
    leaves: dict[Turn, str] = field(default_factory=dict)
    learnt: dict[str, str] = field(default_factory=dict)
    excused: set[Turn] = field(default_factory=set)
    torn: list[str] = field(default_factory=list)
    chosen: set[Turn] = field(default_factory=set)
    claims: list[Report] = field(default_factory=list)
    went_back: list[str] = field(default_factory=list)
    rounds: set[int] = field(default_factory=set)
    ordered: set[str] = field(default_factory=set)
    barred: set[str] = field(default_factory=set)
    void: set[Turn] = field(default_factory=set)

    @property
    def repeated(self) -> list[Turn]:
        """Turns that were repeated without need."""
        return [turn for turn, count in self.turns.items() if count > 1]

    @property
    def folded(self) -> int:
        """Updates that went into a later round than their own."""
        return sum(b != merge.base for merge in self.merges for b, _ in merge.updates.values())

    def trained(self, report: Report, before: str, after: str) -> None:
        """Check a saved turn: it began from the private state of the last accepted update."""
        turn = (report.device, report.version)
        self.turns[turn] += 1
        self.reported(report)
        if report.device in self.ordered:
            return
        known = self.learnt.setdefault(report.device, before)
        same = known in (before, UNSEEN) or self.rots
        _require(same, f"{turn} began from another private state")
        self.leaves[turn] = after

    def reported(self, report: Report) -> None:
        """An agent has a turn. The same turn again must be the same: it was seeded."""
        turn = (report.device, report.version)
        if report.device in self.ordered:
            self.claims.append(report)
            self.reports[turn] = report
            return
        known = self.reports.setdefault(turn, report)
        few = report.scalars.items() <= known.scalars.items()  # the method may be another by now
        same = few and known.manifest == report.manifest
        _require(same, f"{turn} was trained again and differs")

    def claimed(self, report: Report) -> None:
        """A hostile device has sent a report."""
        self.claims.append(report)

    def replied(self, device: str, reply: Reply) -> None:
        """A reply of the coordinator has reached the broker."""
        if reply.kind == "refused":
            self.refused.add((device, reply.version))
        if device in self.hostile:
            return
        if reply.kind == "accepted":
            self._acknowledge((device, reply.version))
        elif reply.kind == "refused" and "manifest" in reply.reason:
            self.torn.append(f"{device}'s update: {reply.reason}")
        elif reply.kind == "refused":
            _require(not self.hostile, f"{device} is honest, and is refused: {reply.reason}")

    def spoiled(self, device: str, reason: str) -> None:
        """A model came whole to a device, and was not what it should be."""
        self.torn.append(f"{device}'s model: {reason}")

    def _acknowledge(self, turn: Turn) -> None:
        _require(turn in self.reports, f"{turn} was acknowledged, but never trained")
        if turn not in self.acknowledged:
            self.learnt[turn[0]] = self.leaves.get(turn, UNSEEN)
        self.acknowledged.add(turn)
        over = {merge.base for merge in self.merges}
        if turn[1] in over and not self.folds:
            known = turn in self.merged or turn in self.excused
            _require(known, f"{turn} was acknowledged after a merge without it")

    @property
    def outstanding(self) -> set[Turn]:
        """Turns that were acknowledged, and are in no version yet."""
        return self.acknowledged - self.merged.keys() - self.excused

    def kept(self, turn: Turn, sha256: str) -> None:
        """Check an acknowledged update: these bytes of it survive a power cut."""
        told = [r for r in self.claims if (r.device, r.version) == turn] or [self.reports[turn]]
        durable = sha256 in {report.manifest.sha256 for report in told}
        _require(durable, f"{turn} was acknowledged, and is not durable")

    def ordering(self, order: Any) -> None:
        """An operator gives an order; it may be carried out and not be answered, or neither."""
        if isinstance(order, ReleaseOrder | ForgetOrder):
            self.barred.discard(order.device)
        if not isinstance(order, QuarantineOrder | RevokeOrder | ForgetOrder):
            return
        device = order.device
        # An acknowledgement that was sent before may still be on its way.
        self.excused |= {turn for turn in self.reports if turn[0] == device} - self.merged.keys()
        self.strayed(device)

    def strayed(self, device: str) -> None:
        """A device may train a turn again, from other private state: all its reports count."""
        if device not in self.ordered:
            self.claims += [r for (d, _), r in self.reports.items() if d == device]
        self.ordered.add(device)

    def gave(self, order: Any) -> None:
        """An order was acknowledged."""
        match order:
            case QuarantineOrder(device) | RevokeOrder(device):
                self.barred.add(device)
            case ForgetOrder(device):
                self.void |= {turn for turn in self.chosen if turn[0] == device}

    def entered(self, turn: Turn, known: bool) -> None:
        """The coordinator is about to acknowledge an update that its journal has, or has not."""
        _require(known, f"{turn} is acknowledged, and the journal lacks it")

    def announced(self, version: str, missing: int) -> None:
        """Check a published state: the broker has all chunks of its version but `missing`."""
        _require(not missing, f"{version} is announced, and the broker lacks {missing} chunks")

    def wanted(self, who: str, chunks: Iterable[int], have: Collection[int]) -> None:
        """Check a request for chunks: none of those already on disk is requested."""
        again = [index for index in chunks if index in have]
        _require(not again, f"{who} asks again for chunks that it has: {again}")

    def requested(self, turn: Turn, expected: bool) -> None:
        """Check a request for an update: the coordinator's spool must expect it."""
        _require(expected, f"{turn} is asked to send chunks that nobody expects")

    def begun(self, number: int, untimely: str) -> None:
        """Check a round that asks its first devices: the schedule allows it."""
        _require(number in self.rounds or not untimely, f"round {number + 1} begins: {untimely}")
        self.rounds.add(number)

    def chose(
        self, version: str, devices: Iterable[str], off: Collection[str] = (), paused: bool = False
    ) -> None:
        """The coordinator's journal records the devices that it asks for a version.

        Those in `off` must not be asked by order of an operator, and while the federation is
        `paused` no round may begin.
        """
        turns = {(device, version) for device in devices}
        fresh = turns - (self.chosen - self.void)
        begun = any(version == base for _, base in self.chosen)
        _require(begun or not turns or not paused, f"a round begins with {version} in a pause")
        wrong = sorted(device for device, _ in fresh if device in off)
        _require(not wrong, f"{wrong} are asked against an order")
        self.chosen |= turns
        self.void -= turns

    def asked(self, device: str, quarantined: Collection[str]) -> None:
        """The coordinator asks a device for a turn."""
        _require(device not in quarantined, f"{device} is in quarantine, and is asked")

    def resumed(self, stored: Collection[str]) -> None:
        """A coordinator has started again: what it had acknowledged must still be there."""
        for device, _ in self.outstanding:
            _require(device in stored, f"{device}'s update was acknowledged, and is lost")

    def advanced(
        self,
        progress: Progress,
        reports: Mapping[str, Mapping[str, float]],
        read: Mapping[str, Read],
        rolled_back: bool = False,
    ) -> None:
        """The journal has a new version, made of these updates."""
        before, self.progress = self.progress, progress
        if before is None:
            _require(not read, "the first version was made of updates")
            return
        _require(progress.version > before.version, "a version does not follow the one before")
        _require(progress.rounds_done == before.rounds_done + 1, "a round was left out")
        self.merges.append(Merge(before.version, progress.version, dict(read)))
        if progress.restored == before.version and not rolled_back:  # other settings begin
            lost = self.outstanding
            _require(not lost, f"{sorted(lost)} were acknowledged, and the settings changed")
            return
        if progress.restored:  # what was trained from a version that is given up goes with it
            self.excused |= self.reports.keys() - self.merged.keys()
            self.went_back.append(progress.restored)
            return
        honest = read.keys() - self.hostile
        _require(bool(honest), f"{progress.version} has no update of an honest device")
        for device, (base, sha256) in read.items():
            out = device in self.barred or (device, base) in self.void
            _require(not out, f"{progress.version} has an update of {device} against an order")
            mixed = base != before.version and not self.folds
            _require(not mixed, f"{progress.version} mixes versions: {device} began from {base}")
            self._merge(device, sha256, base, progress.version, reports[device])
        for turn in self.acknowledged - self.excused:
            _require(turn in self.merged, f"{turn} was acknowledged, and is in no merge")

    def _merge(
        self, device: str, sha256: str, base: str, version: str, scalars: Mapping[str, float]
    ) -> None:
        turn = (device, base)
        loose = device in self.hostile or device in self.ordered
        known = self.claims if loose else [*filter(None, [self.reports.get(turn)])]
        reports = [r for r in known if (r.device, r.version, r.manifest.sha256) == (*turn, sha256)]
        if not reports:
            raise BrokenError(
                f"{version} has an update of {device} that was not trained from {base}"
            )
        _require(turn in self.chosen, f"{version} has an update of {turn}, which nobody asked for")
        _require(turn not in self.merged, f"{turn} is in two merges")
        told = [report.scalars for report in reports]
        _require(scalars in told, f"{turn} counts {scalars}, it reported {told}")
        self.merged[turn] = version

    def holds(self, version: str, model: Vector) -> None:
        """The journal's version has these numbers."""
        largest = float(np.abs(model).max())
        _require(largest <= LARGEST, f"{version} has the number {largest:.4g}")

    def made_of(self, shares: Mapping[str, float]) -> None:
        """Check the measured share of each device's update in the next version."""
        for device, share in shares.items():
            _require(share < OWNED, f"{device} has {share:.0%} of the next version")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenError(otherwise)
