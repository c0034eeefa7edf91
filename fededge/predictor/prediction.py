"""The result of a model for one input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fededge.predictor.model import About

__all__ = ["Prediction", "as_json"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """The probabilities, in the order of `about.labels`, and the model that gave them."""

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
        """The version of the model."""
        return self.about.version

    def top(self, count: int | None = None) -> list[tuple[str, float]]:
        """The most probable labels, best first; all of them without a count."""
        best = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.about.labels[i], float(self.probabilities[i])) for i in best]

    def __repr__(self) -> str:
        return f"Prediction({self.label!r}, {self.probability:.4f}, version={self.version!r})"


def as_json(prediction: Prediction, top: int | None = None) -> dict[str, Any]:
    """A prediction as JSON values: the best label, the `top` labels (None: all), the version."""
    best = [{"label": label, "probability": p} for label, p in prediction.top(top)]
    return {**best[0], "version": prediction.version, "top": best}
