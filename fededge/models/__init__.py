"""The networks of the papers, each a body that makes features and a head that makes logits."""

from __future__ import annotations

from fededge.models.base import Classifier, Preprocess
from fededge.models.zoo import build, check_name, names

__all__ = ["Classifier", "Preprocess", "build", "check_name", "names"]
