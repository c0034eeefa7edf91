"""A device's personal model as ONNX: traced once, filled, compared with torch, swapped in."""

from __future__ import annotations

from fededge.export.manifest import Facts, Input, Manifest, Origin
from fededge.export.models import Models
from fededge.export.parity import Parity, check, predict, session
from fededge.export.template import Template

__all__ = [
    "Facts",
    "Input",
    "Manifest",
    "Models",
    "Origin",
    "Parity",
    "Template",
    "check",
    "predict",
    "session",
]
