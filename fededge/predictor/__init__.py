"""A device's model in an app: loaded, followed when it changes, asked for labels; without torch."""

from __future__ import annotations

from fededge.predictor.model import About
from fededge.predictor.prediction import Prediction
from fededge.predictor.predictor import Predictor
from fededge.predictor.providers import Provider

__all__ = ["About", "Prediction", "Predictor", "Provider"]
