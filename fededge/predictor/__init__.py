"""Inference with a device's model in an app, without torch; new models are loaded as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fededge._internal.lazy_torch import lazy_names

__all__ = ["About", "Prediction", "Predictor", "Provider"]

if TYPE_CHECKING:
    from fededge.predictor.model import About
    from fededge.predictor.prediction import Prediction
    from fededge.predictor.predictor import Predictor
    from fededge.predictor.providers import Provider
else:
    # Lazy imports: these modules need numpy, and reading a manifest does not.
    __getattr__ = lazy_names(
        __name__,
        {
            "model": "About",
            "prediction": "Prediction",
            "predictor": "Predictor",
            "providers": "Provider",
        },
    )
