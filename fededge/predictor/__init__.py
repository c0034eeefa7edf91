"""Inference with a device's model in an app, without torch; new models are loaded as they come."""

from __future__ import annotations

from fededge.predictor.model import About
from fededge.predictor.prediction import Prediction
from fededge.predictor.predictor import Predictor
from fededge.predictor.providers import Provider

__all__ = ["About", "Prediction", "Predictor", "Provider"]
