"""What a model says about one input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fededge.predictor.model import About

__all__ = ["Prediction", "as_json"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """The probability of every label, and which model says so; `about.labels` gives the order."""

    probabilities: np.ndarray
    about: About

    @property
    def label(self) -> str:
        """The most probable label."""
        return self.about.labels[int(self.probabilities.argmax())]

    @property
    def probability(self) -> float:
        """The probability of `label`."""
        return float(self.probabilities.max())

    @property
    def version(self) -> str:
        """The one model that this comes from."""
        return self.about.version

    def top(self, count: int | None = None) -> list[tuple[str, float]]:
        """The most probable labels, best first; all of them without a count."""
        best = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.about.labels[i], float(self.probabilities[i])) for i in best]

    def __repr__(self) -> str:
        return f"Prediction({self.label!r}, {self.probability:.4f}, version={self.version!r})"


def as_json(prediction: Prediction, top: int | None = None) -> dict[str, Any]:
    """A prediction for a program: the best label, the best few or all, and the version."""
    best = [{"label": label, "probability": p} for label, p in prediction.top(top)]
    return {**best[0], "version": prediction.version, "top": best}
