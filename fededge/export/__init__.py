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
    "Reference",
    "RegistryIndex",
    "Samples",
    "Template",
    "Variant",
    "check",
    "fill_candidate",
    "make_candidate",
    "predict",
    "predict_all",
    "probabilities",
    "reference",
    "session",
]

if TYPE_CHECKING:
    from fededge.export.candidate import (
        VARIANTS,
        Candidate,
        Samples,
        fill_candidate,
        make_candidate,
    )
    from fededge.export.parity import (
        Parity,
        Reference,
        check,
        predict,
        predict_all,
        probabilities,
        reference,
        session,
    )
    from fededge.export.template import Template
else:
    # Lazy imports: an agent's own process needs the registry alone.
    __getattr__ = lazy_names(
        __name__,
        {
            "candidate": "VARIANTS Candidate Samples fill_candidate make_candidate",
            "parity": "Parity Reference check predict predict_all probabilities reference session",
            "template": "Template",
        },
    )
