"""The networks of the papers, each a body that makes features and a head that makes logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fededge._internal.lazy_torch import lazy_names
from fededge.models.catalogue import check_name, names

__all__ = [
    "Classifier",
    "CosineHead",
    "Fused",
    "Preprocess",
    "apart",
    "build",
    "build_for",
    "channels_last",
    "check_name",
    "heads",
    "names",
    "numbers_of",
    "outline",
    "pooled_first",
    "redraw_",
    "sketch",
    "takes_texts",
    "trained",
    "untrained",
]

if TYPE_CHECKING:
    from fededge.models.activations import numbers_of
    from fededge.models.base import Classifier, Preprocess, channels_last, redraw_, takes_texts
    from fededge.models.ensemble import Fused
    from fededge.models.head import CosineHead, heads
    from fededge.models.layer_fusion import apart, pooled_first, trained, untrained
    from fededge.models.zoo import build, build_for, outline, sketch
else:
    # What lies behind these names needs torch.
    __getattr__ = lazy_names(
        __name__,
        {
            "base": "Classifier Preprocess channels_last redraw_ takes_texts",
            "head": "CosineHead heads",
            "layer_fusion": "apart pooled_first trained untrained",
            "ensemble": "Fused",
            "activations": "numbers_of",
            "zoo": "build build_for outline sketch",
        },
    )
