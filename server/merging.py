"""From the accepted updates of a round to the next model: read, checked, rebased, combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fededge.aggregation import aggregate
from fededge.config import RobustConfig, RoundsConfig
from fededge.errors import WireError
from fededge.flat import Layout
from fededge.methods.base import State
from fededge.methods.compose import Stack
from fededge.robust import Rows, clipped, krum, median, trimmed_mean
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Report
from fededge_server.store import Store

__all__ = ["Merging"]


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
            norm = float(torch.linalg.vector_norm(model - base, dtype=torch.float64))
            if norm > self.robust.max_norm:
                most = self.robust.max_norm
                raise WireError(f"it changes the model by {norm:.4g}, allowed are {most:.4g}")

    def merge(
        self, reports: Mapping[str, Report], devices: int, current: Current
    ) -> tuple[Tensor, State]:
        """The next model, and what the method remembers then."""
        if self.robust.combine == "mean":
            return self._aggregate(reports, devices, current, None)
        rows = Rows(self.store.rows, sorted(reports), self.layout.size)
        try:
            rows.fill(lambda device: self._update(device, reports[device], current))
            if self.robust.combine == "krum":
                chosen = krum(rows, self.robust.byzantine)
                return self._aggregate({chosen: reports[chosen]}, devices, current, None)
            middle = median(rows)
            if self.robust.combine == "trimmed-mean":
                middle = trimmed_mean(rows, self.robust.trim)
            return self._aggregate(reports, devices, current, middle)
        finally:
            rows.remove()

    def _aggregate(
        self, reports: Mapping[str, Report], devices: int, current: Current, mean: Tensor | None
    ) -> tuple[Tensor, State]:
        return aggregate(
            self.method,
            current.model,
            current.memory,
            {device: dict(report.scalars) for device, report in reports.items()},
            lambda device: self._update(device, reports[device], current),
            devices=devices,
            layout=self.layout,
            mean=mean,
        )

    def _update(self, device: str, report: Report, current: Current) -> Tensor:
        """The model that a device sent, as if it had been trained from the current version.

        The change of a late one is put onto the current version, and counts the less the older it
        is: (1 + s)^-a, as in FedBuff (Nguyen et al. 2022).
        """
        base = self._base(report.version, current)
        model = self.store.update(
            report.version,
            device,
            lambda file: self.encoding.unpack(self.layout, file, base),
        )
        age = current.round - report.round
        if age:
            factor = (1.0 + age) ** -self.rounds.staleness_power
            model = current.model + factor * (model - base)
        if self.robust.clip_norm:
            model = clipped(model, current.model, self.robust.clip_norm)
        return model

    def _base(self, version: str, current: Current) -> Tensor:
        if version == current.version:
            return current.model
        return self.store.load(version, self.layout)[0]


@dataclass(frozen=True, eq=False)
class Current:
    """The version that a round begins from."""

    round: int
    version: str
    model: Tensor
    memory: State
