"""A device's personal model as ONNX: traced once, filled, compared with torch, swapped in."""

from __future__ import annotations

from fededge.export.candidate import VARIANTS, Draft, Samples, compared
from fededge.export.manifest import Facts, Input, Manifest, Origin, Variant
from fededge.export.parity import Parity, check, predict, predict_all, session
from fededge.export.registry import Models
from fededge.export.registry_index import Entry, Record
from fededge.export.template import Template

__all__ = [
    "VARIANTS",
    "Draft",
    "Entry",
    "Facts",
    "Input",
    "Manifest",
    "Models",
    "Origin",
    "Parity",
    "Record",
    "Samples",
    "Template",
    "Variant",
    "check",
    "compared",
    "predict",
    "predict_all",
    "session",
]
