"""The networks of the papers, each a body that makes features and a head that makes logits."""

from __future__ import annotations

from fededge.models.base import Classifier, Preprocess, takes_texts
from fededge.models.heads import CosineHead, heads
from fededge.models.zoo import build, build_for, check_name, names, sketch

__all__ = [
    "Classifier",
    "CosineHead",
    "Preprocess",
    "build",
    "build_for",
    "check_name",
    "heads",
    "names",
    "sketch",
    "takes_texts",
]
