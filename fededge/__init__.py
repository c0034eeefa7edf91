"""FedEdge: one model trained across edge devices whose data never leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Prediction", "Predictor", "__version__"]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fededge.predictor import Prediction, Predictor
else:

    def __getattr__(name: str) -> object:
        """`Predictor` and `Prediction` need numpy: only those who name them wait for it."""
        if name not in ("Prediction", "Predictor"):
            raise AttributeError(f"module 'fededge' has no attribute {name!r}")
        from fededge import predictor

        return getattr(predictor, name)
