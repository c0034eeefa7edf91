"""Tells good versions from bad ones: by our own evaluation, else by what the devices report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from fededge.federated.bounds import FEWEST
from fededge_server.machine.events import Judge

__all__ = ["Health"]


MOST_GOOD = 1000
"""Good versions that are remembered."""


@dataclass
class Health:
    """The good versions, oldest first, and the best accuracy that one had.

    Accuracies that devices report count only where the coordinator has no examples of its own. Each
    is compared with the best of the same device, for data differs from box to box, and the median
    decides: a third of the fleet may lie.

    Attributes:
        max_drop: points of accuracy below the best that make a version bad.
        best: by our own evaluation.
        evaluated: the version that it judged last.
        reported: the best accuracy that each device has reported.
    """

    max_drop: float
    good: list[str] = field(default_factory=list)
    best: float | None = None
    evaluated: str = ""
    reported: dict[str, float] = field(default_factory=dict)

    @property
    def last_good(self) -> str:
        return self.good[-1] if self.good else ""

    def evaluate(self, version: str, accuracy: float | None) -> str:
        """Judge a new version by our own evaluation: why it is bad; empty if it is not."""
        if accuracy is None:
            return ""
        self.evaluated = version
        if self.best is not None and accuracy < self.best - self.max_drop / 100:
            self._forget(version)
            return f"its accuracy is {accuracy:.1%}, the best one had {self.best:.1%}"
        self.best = max(accuracy, accuracy if self.best is None else self.best)
        self._remember(version)
        return ""

    def hear(self, judge: Judge) -> str:
        """Judge a version by the turns that began from it: why it is bad; empty if it is not."""
        if judge.failed > max(1, judge.asked / 2):  # one alone may lie
            self._forget(judge.version)
            return f"{judge.failed} of {judge.asked} devices could not train from it"
        if judge.version == self.evaluated or len(judge.accuracies) < FEWEST:
            return ""
        return self._compare(judge.version, judge.accuracies)

    def _compare(self, version: str, accuracies: Mapping[str, float]) -> str:
        drops = [(self.reported[d] - now) for d, now in accuracies.items() if d in self.reported]
        drop = statistics.median(drops) if len(drops) >= FEWEST else 0.0
        if drop > self.max_drop / 100:
            self._forget(version)
            return f"the devices' accuracies are {100 * drop:.1f} points below their best (median)"
        for device, now in accuracies.items():
            self.reported[device] = max(now, self.reported.get(device, now))
        self._remember(version)
        return ""

    def _remember(self, version: str) -> None:
        if version not in self.good:
            self.good = [*self.good[1 - MOST_GOOD :], version]

    def _forget(self, version: str) -> None:
        self.good = [other for other in self.good if other != version]
