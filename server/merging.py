"""From the accepted updates of a round to the next model: read, checked, rebased, combined."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from fededge.aggregation import Update, aggregate
from fededge.config import RobustConfig, RoundsConfig
from fededge.errors import WireError
from fededge.flat import Layout, Vector
from fededge.methods.base import State
from fededge.methods.compose import Stack
from fededge.robust import Rows, krum, median, norm_of, trimmed_mean
from fededge.wire import tensors
from fededge.wire.container import Sink
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Report
from fededge_server.store import Store

__all__ = ["Current", "Merging"]

BLOCK = 1 << 20
"""Bytes that are decompressed at a time."""


@dataclass(frozen=True)
class Merging:
    """What stays the same from round to round."""

    store: Store
    layout: Layout
    method: Stack
    encoding: Encoding
    rounds: RoundsConfig
    robust: RobustConfig

    def check(self, device: str, report: Report, current: Current) -> None:
        """Make an update durable if it is one that may be summed; a WireError if not."""
        base = self._base(report.version, current)
        model = self.store.check(
            report.version,
            device,
            report.manifest,
            lambda file: self.encoding.unpack(self.layout, file, base),
        )
        self.method.check(report.scalars)
        if self.robust.max_norm:
            norm = norm_of(self.layout.size, lambda span: model[span] - base[span])
            if norm > self.robust.max_norm:
                most = self.robust.max_norm
                raise WireError(f"it changes the model by {norm:.4g}, allowed are {most:.4g}")

    def merge(
        self, reports: Mapping[str, Report], devices: int, current: Current
    ) -> tuple[Vector, State]:
        """The next model, and what the method remembers then."""
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
        """Parts of an update can be read once it is not compressed."""
        if not self.encoding.zstd:
            return
        most = tensors.payload_limit(self.layout)

        def inflate(file: BinaryIO, into: Sink) -> None:
            with self.encoding.plain(file, most) as plain:
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
        return aggregate(
            self.method,
            current.model,
            current.memory,
            {device: dict(report.scalars) for device, report in reports.items()},
            update,
            devices=devices,
            layout=self.layout,
            mean=mean,
        )

    def _update(self, device: str, report: Report, current: Current) -> Update:
        """The model that a device sent, as if it had been trained from the current version.

        The change of a late one is put onto the current version, and counts the less the older it
        is: (1 + s)^-a, as in FedBuff (Nguyen et al. 2022). One that is too long is scaled down.
        """
        age = current.round - report.round
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
            return tensors.Made(shape, rebased)
        norm, most = norm_of(len(w), lambda span: rebased(span) - w[span]), self.robust.clip_norm
        if norm <= most:
            return tensors.Made(shape, rebased)
        return tensors.Made(shape, lambda s: w[s] + (rebased(s) - w[s]) * (most / norm))

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
    memory: State
