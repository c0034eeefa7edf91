"""ONNX export of a device's personal model: trace, fill, parity check with torch, registry."""

from __future__ import annotations

from fededge.export.candidate import VARIANTS, Candidate, Samples, make_candidate
from fededge.export.manifest import InputSpec, ModelFacts, ModelManifest, Origin, Variant
from fededge.export.parity import Parity, check, predict, predict_all, session
from fededge.export.registry import ModelRegistry
from fededge.export.registry_index import IndexEntry, RegistryIndex
from fededge.export.template import Template

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
