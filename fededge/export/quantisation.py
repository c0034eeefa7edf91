"""Conversion of a float32 ONNX file to int8: static QDQ, calibrated, with per-channel scales.

ONNX Runtime folds batch norm into the convolutions first, and measures the activations.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fededge._internal.lazy_torch import Tensor
from fededge.errors import ExportError
from fededge.export.parity import Array, as_array
from fededge.predictor.providers import first_line
from fededge.predictor.runtime import import_onnx_runtime

if TYPE_CHECKING:
    import onnx

__all__ = ["to_int8"]

# Samples in one forward pass of the calibration.
BATCH = 32
# The quantised operations. Not softmax and normalisation: they lose accuracy and save nothing.
OPERATIONS = (
    "Conv",
    "Gemm",
    "MatMul",
    "Gather",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "Add",
    "Relu",
    "Flatten",
    "Reshape",
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def to_int8(model: bytes, samples: Tensor | Array) -> bytes:
    """Return the model with int8 weights and activations.

    Args:
        model: the float32 ONNX file.
        samples: calibration samples; training samples, never held-out ones.
    """
    import onnx

    try:
        with tempfile.TemporaryDirectory(prefix="fededge-") as name, _quiet():
            folder = Path(name)
            _fold(model, folder / "folded.onnx")
            _quantise(folder / "folded.onnx", folder / "int8.onnx", as_array(samples))
            result = onnx.load_model(folder / "int8.onnx")
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise ExportError(f"the model cannot be quantised ({first_line(error)})") from error
    _shorten(result, onnx.load_model_from_string(model))
    data: bytes = result.SerializeToString()
    return data


def _fold(model: bytes, target: Path) -> None:
    """Let ONNX Runtime fold constants and batch norm, and write the result."""
    runtime = import_onnx_runtime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _quantise(source: Path, target: Path, samples: Array) -> None:
    import_onnx_runtime()  # before its parts: its telemetry stays off
    from onnxruntime import quantization as q

    q.quantize_static(
        source,
        target,
        _Samples(samples, source),
        quant_format=q.QuantFormat.QDQ,
        op_types_to_quantize=list(OPERATIONS),
        per_channel=True,
        activation_type=q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt8,
        # Seven bits: x86 without VNNI adds two 8-bit products in 16 bits, which overflows.
        # ResNet-20 on Fashion-MNIST lost 1.0 points there with eight bits, 0.1 with seven.
        reduce_range=True,
        calibrate_method=q.CalibrationMethod.MinMax,
    )


class _Samples:
    """ONNX Runtime's calibration data reader."""

    def __init__(self, samples: Array, model: Path) -> None:
        import onnx

        name = onnx.load_model(model).graph.input[0].name
        starts = range(0, len(samples), BATCH)
        self.batches = ({name: samples[start : start + BATCH]} for start in starts)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def _shorten(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Shorten the names inside the graph, and restore the original's metadata.

    ONNX Runtime's long names of scales, repeated, take a third of a small network.
    """
    graph = model.graph
    kept = {value.name for value in (*graph.input, *graph.output)}
    names: dict[str, str] = {"": ""} | {name: name for name in kept}

    def short(name: str) -> str:
        return names.setdefault(name, _word(len(names)))

    for tensor in graph.initializer:
        tensor.name = short(tensor.name)
        tensor.ClearField("doc_string")
    for node in graph.node:
        node.ClearField("name")
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        for values in (node.input, node.output):
            values[:] = [short(name) for name in values]
    del graph.value_info[:], model.metadata_props[:], model.opset_import[:]
    for field in ("ir_version", "producer_name", "producer_version"):
        setattr(model, field, getattr(original, field))
    model.opset_import.extend(original.opset_import)
    model.metadata_props.extend(original.metadata_props)
    graph.name = original.graph.name


def _word(number: int) -> str:
    word = ""
    while number:
        number, rest = divmod(number, len(LETTERS))
        word += LETTERS[rest]
    return f"_{word}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress ONNX Runtime's advice about its pre-processing, which goes to the root logger.

    A filter affects this thread's records on the root logger alone; a level would silence the
    agent's other threads too.
    """
    root, here = logging.getLogger(), threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno >= logging.ERROR

    root.addFilter(passes)
    try:
        yield
    finally:
        root.removeFilter(passes)
