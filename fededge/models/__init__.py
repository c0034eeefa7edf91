"""The papers' networks: each has a body that returns features and a head that returns logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fededge._internal.lazy_torch import lazy_names
from fededge.models.catalogue import check_configured, check_name, names
from fededge.models.own_names import (
    absolute_reference,
    announced_name,
    check_allowed,
    check_reference,
    in_zoo,
    is_own,
    is_reference,
    load,
)

__all__ = [
    "Classifier",
    "CosineHead",
    "LogitSum",
    "Preprocess",
    "absolute_reference",
    "activation_counts",
    "announced_name",
    "autocast",
    "batch_independent",
    "build",
    "build_for",
    "channels_last",
    "check_allowed",
    "check_configured",
    "check_name",
    "check_parameters",
    "check_reference",
    "computing_on",
    "for_inference",
    "for_training",
    "heads",
    "in_zoo",
    "is_own",
    "is_reference",
    "load",
    "meta_network",
    "names",
    "pooled_first",
    "probe_network",
    "redraw_",
    "takes_texts",
]

if TYPE_CHECKING:
    from fededge.models.activations import activation_counts
    from fededge.models.base import Classifier, Preprocess, redraw_, takes_texts
    from fededge.models.ensemble import LogitSum
    from fededge.models.head import CosineHead, heads
    from fededge.models.layer_fusion import (
        batch_independent,
        for_inference,
        for_training,
        pooled_first,
    )
    from fededge.models.precision import autocast, channels_last, computing_on
    from fededge.models.zoo import (
        build,
        build_for,
        check_parameters,
        meta_network,
        probe_network,
    )
else:
    # Lazy imports: these modules need torch.
    __getattr__ = lazy_names(
        __name__,
        {
            "base": "Classifier Preprocess redraw_ takes_texts",
            "head": "CosineHead heads",
            "layer_fusion": "batch_independent for_inference for_training pooled_first",
            "precision": "autocast channels_last computing_on",
            "ensemble": "LogitSum",
            "activations": "activation_counts",
            "zoo": "build build_for check_parameters meta_network probe_network",
        },
    )
