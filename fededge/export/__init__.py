"""ONNX export of a device's personal model: trace, fill, parity check with torch, registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fededge._internal.lazy_torch import lazy_names
from fededge.export.manifest import InputSpec, ModelFacts, ModelManifest, Origin, Variant
from fededge.export.registry import ModelRegistry
from fededge.export.registry_index import IndexEntry, RegistryIndex

__all__ = [
    "VARIANTS",
    "Candidate",
    "IndexEntry",
    "InputSpec",
    "ModelFacts",
    "ModelManifest",
    "ModelRegistry",
    "Origin",
    "Parity",
    "RegistryIndex",
    "Samples",
    "Template",
    "Variant",
    "check",
    "make_candidate",
    "predict",
    "predict_all",
    "session",
]

if TYPE_CHECKING:
    from fededge.export.candidate import VARIANTS, Candidate, Samples, make_candidate
    from fededge.export.parity import Parity, check, predict, predict_all, session
    from fededge.export.template import Template
else:
    # Lazy imports: these modules need torch. An agent's own process needs the registry alone.
    __getattr__ = lazy_names(
        __name__,
        {
            "candidate": "VARIANTS Candidate Samples make_candidate",
            "parity": "Parity check predict predict_all session",
            "template": "Template",
        },
    )
