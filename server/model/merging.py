"""Makes the next model from a round's accepted updates: read, checked, rebased, combined.

Whatever an accepted update holds, a merge never raises for it: the update is left out and named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from fededge.config import RobustConfig, RoundsConfig
from fededge.errors import MethodError, WireError
from fededge.federated.aggregation import Update, aggregate
from fededge.federated.bounds import capped, outlier, suspects
from fededge.federated.robust import Rows, krum, median, norm_of, trimmed_mean
from fededge.flat import Layout, Vector
from fededge.method.base import Hyper, State
from fededge.method.stack import Stack
from fededge.wire import tensors
from fededge.wire.container import Sink
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Report, round_of
from fededge_server.machine.events import NO_BYTES
from fededge_server.model.culprits import sift
from fededge_server.store import Store

__all__ = ["Current", "MergeResult", "Merging"]

BLOCK = 1 << 20
"""Bytes that are decompressed at a time."""


@dataclass(frozen=True)
class Merging:
    """Checks and merges updates; its fields stay the same from round to round."""

    store: Store
    layout: Layout
    method: Stack
    encoding: Encoding
    rounds: RoundsConfig
    robust: RobustConfig
    hyper: Hyper

    def check(
        self,
        device: str,
        report: Report,
        current: Current,
        limit: float,
        data: memoryview = NO_BYTES,
    ) -> float:
        """Check whether an update may be summed; raise a WireError if not.

        Args:
            limit: the longest change that is usual in the fleet.
            data: the update, if it came at once; otherwise it is in the spool.

        Returns:
            The norm of its change.
        """
        base = self._base(report.version, current)
        model = self.store.check(
            report.version,
            device,
            report.manifest,
            lambda file: self.encoding.unpack(self.layout, file, base),
            data,
        )
        self.method.check(report.scalars, self.hyper)
        self._check_values(model)
        norm = norm_of(self.layout.size, lambda span: model[span] - base[span])
        most = self.robust.max_norm
        if most and norm > most:
            raise WireError(f"it changes the model by {norm:.4g}, robust.max_norm is {most:.4g}")
        if norm > limit:
            raise WireError(outlier(norm, limit))
        return norm

    def _check_values(self, model: Vector) -> None:
        most = self.robust.max_value
        largest = max(float(model.max()), -float(model.min())) if model.size else 0.0
        if not largest <= most:
            raise WireError(f"it has the number {largest:.4g}, robust.max_value is {most:.4g}")

    def merge(
        self,
        reports: Mapping[str, Report],
        norms: Mapping[str, float],
        devices: int,
        current: Current,
    ) -> MergeResult:
        """Make the next model from all updates that allow it.

        Args:
            norms: of the changes, by device.
            devices: how many the federation has.
        """
        facts = {d: {**r.scalars, "norm": norms.get(d, 0.0)} for d, r in reports.items()}

        def attempt(chosen: Sequence[str]) -> tuple[Vector, State]:
            return self._merge({d: reports[d] for d in sorted(chosen)}, devices, current)

        sifted = sift(suspects(facts), attempt)
        if sifted.result is None:
            return MergeResult(current.model, current.state, (), problem=sifted.reason)
        merged = tuple(sorted(reports.keys() - {*sifted.culprits}))
        refused = dict.fromkeys(sorted(sifted.culprits), sifted.reason)
        return MergeResult(*sifted.result, merged, refused)

    def _merge(
        self, reports: Mapping[str, Report], devices: int, current: Current
    ) -> tuple[Vector, State]:
        """The next model and the method's next state; may raise anything."""
        update = functools.cache(lambda device: self._update(device, reports[device], current))
        rows = Rows(self.store.rows, sorted(reports), self.layout.size)
        try:
            self._expand(reports)
            if self.robust.combine == "mean":
                return self._aggregate(reports, devices, current, update)
            rows.fill(update)
            if self.robust.combine == "krum":
                chosen = krum(rows, self.robust.byzantine)
                return self._aggregate({chosen: reports[chosen]}, devices, current, update)
            middle = median(rows)
            if self.robust.combine == "trimmed-mean":
                middle = trimmed_mean(rows, self.robust.trim)
            return self._aggregate(reports, devices, current, update, middle)
        finally:
            rows.remove()
            self.store.shrink()

    def _expand(self, reports: Mapping[str, Report]) -> None:
        """Decompress the updates, so that parts of them can be read."""
        if not self.encoding.zstd:
            return
        most = tensors.payload_limit(self.layout)

        def inflate(file: BinaryIO, into: Sink) -> None:
            with self.encoding.decompressed(file, most) as plain:
                while block := plain.read(BLOCK):
                    into.write(block)

        for device, report in reports.items():
            self.store.expand(report.version, device, inflate)

    def _aggregate(
        self,
        reports: Mapping[str, Report],
        devices: int,
        current: Current,
        update: Callable[[str], Update],
        mean: Vector | None = None,
    ) -> tuple[Vector, State]:
        model, state = aggregate(
            self.method,
            current.model,
            current.state,
            self._fair(reports),
            update,
            devices=devices,
            layout=self.layout,
            mean=mean,
            max_share=self.robust.max_weight_share,
        )
        try:
            self._check_values(model)
        except WireError as error:
            raise MethodError(f"{self.method}: the next model is unusable: {error}") from None
        return model, state

    def _fair(self, reports: Mapping[str, Report]) -> dict[str, dict[str, float]]:
        """The scalars of each device; no device has more examples than its share allows.

        A method may use them in other ways than by its weight: FedNova multiplies everybody's step
        by a mean of counts that grow with them.
        """
        claimed = {device: report.scalars["examples"] for device, report in reports.items()}
        fair = capped(claimed, self.robust.max_weight_share)
        return {d: self._as_of(r.scalars, fair[d]) for d, r in reports.items()}

    def _as_of(self, scalars: Mapping[str, float], examples: float) -> dict[str, float]:
        if examples == scalars["examples"]:
            return dict(scalars)
        return self.method.with_fewer_examples(scalars, examples, self.hyper)

    def _update(self, device: str, report: Report, current: Current) -> Update:
        """The model that a device sent, as if it had been trained from the current version.

        The change of a late update is added to the current version with the weight (1 + s)^-a,
        where s is its age in rounds (FedBuff, Nguyen et al. 2022). A change that is too long is
        scaled down.
        """
        age = current.round - round_of(report.version)
        factor = (1.0 + age) ** -self.rounds.staleness_power
        w, shape = current.model, (self.layout.size,)

        def rebased(span: slice) -> Vector:
            base = self._base_part(report.version, current, span)
            model = self.store.update(
                report.version,
                device,
                lambda file: self.encoding.unpack_part(self.layout, file, span, base),
                self.encoding.zstd,
            )
            return w[span] + factor * (model - base) if age else model

        if not self.robust.clip_norm:
            return tensors.LazyVector(shape, rebased)
        norm, most = norm_of(len(w), lambda span: rebased(span) - w[span]), self.robust.clip_norm
        if norm <= most:
            return tensors.LazyVector(shape, rebased)
        return tensors.LazyVector(shape, lambda s: w[s] + (rebased(s) - w[s]) * (most / norm))

    def _base(self, version: str, current: Current) -> Vector:
        if version == current.version:
            return current.model
        return self.store.load(version, self.layout)[0]

    def _base_part(self, version: str, current: Current, span: slice) -> Vector:
        if version == current.version:
            return current.model[span]
        return self.store.part(version, self.layout, span)


@dataclass(frozen=True, eq=False)
class Current:
    """The version that a round begins from."""

    round: int
    version: str
    model: Vector
    state: State


@dataclass(frozen=True, eq=False)
class MergeResult:
    """A merge: the next model, the devices whose updates are in it, and those left out, with why.

    With a `problem` no model could be made: the model and the state are the previous ones.
    """

    model: Vector
    state: State
    merged: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
