"""ONNX Runtime, imported in one place, with its telemetry off."""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["import_onnx_runtime"]

SWITCH = "ORT_DISABLE_TELEMETRY"


def import_onnx_runtime() -> ModuleType:
    """Import ONNX Runtime; ImportError if it is not there.

    Its builds for Linux have telemetry on by default, and keep an id of the device. Only what is
    set before the import prevents that; `ORT_DISABLE_TELEMETRY=0` is the user's own choice.
    """
    os.environ.setdefault(SWITCH, "1")
    import onnxruntime

    if os.environ[SWITCH] == "1":  # an app may have imported it before us
        onnxruntime.disable_telemetry_events()
    module: ModuleType = onnxruntime
    return module
