"""Parity: the exported file in ONNX Runtime must give the probabilities that torch gives.

Torch is needed for its own probabilities alone: a process without torch can make the comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import DataError, ExportError
from fededge.export.manifest import OUTPUT
from fededge.model_spec import ModelSpec
from fededge.predictor.external_data import names_other_files
from fededge.predictor.providers import first_line
from fededge.predictor.runtime import import_onnx_runtime

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "Array",
    "Parity",
    "Reference",
    "as_array",
    "check",
    "compare",
    "predict",
    "predict_all",
    "probabilities",
    "reference",
    "session",
]

Array = npt.NDArray[Any]

# Inputs in one forward pass: bounds the memory, changes no result.
BATCH = 64


@dataclass(frozen=True, eq=False)
class Reference:
    """Inputs, and torch's probabilities for them: an exported file must give the same."""

    inputs: Array
    probabilities: Array


@dataclass(frozen=True)
class Parity:
    """The result of a parity check: the file with this hash agreed with torch on these samples."""

    sha256: str
    samples: int
    difference: float
    same_labels: int
    predicted: Array = field(repr=False, compare=False)

    def accuracy(self, labels: Tensor | Array) -> float:
        """Return the exported file's accuracy, given the samples' true labels."""
        given = as_array(labels)
        if given.shape != self.predicted.shape:
            raise DataError(
                f"{len(self.predicted)} samples were compared, but {len(given)} labels are given"
            )
        return float((self.predicted == given).mean())


def as_array(inputs: Tensor | Array) -> Array:
    """Return inputs or labels as a contiguous numpy array; a copy only if they are elsewhere."""
    if isinstance(inputs, np.ndarray):
        return inputs
    array: Array = inputs.detach().cpu().contiguous().numpy()
    return array


def session(model: bytes | Path, threads: int = 1) -> onnxruntime.InferenceSession:
    """Load a model into ONNX Runtime, on the CPU, without its log lines.

    One thread is fastest for the small networks of an edge device, and keeps it responsive.
    """
    try:
        runtime = import_onnx_runtime()
    except ImportError as error:
        raise ExportError(
            f"an export needs ONNX Runtime, which cannot be imported ({error}); "
            "pip install onnxruntime"
        ) from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    name = "the exported model" if isinstance(model, bytes) else str(model)
    data = model if isinstance(model, bytes) else _read(model)
    if wrong := names_other_files(data):
        raise ExportError(f"{name}: {wrong}")
    try:
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise ExportError(f"{name}: ONNX Runtime cannot load it ({first_line(error)})") from error


def predict(loaded: onnxruntime.InferenceSession, inputs: Tensor) -> Tensor:
    """Return ONNX Runtime's probabilities for images [N, C, H, W] or tokens [N, length]."""
    return torch.from_numpy(_run(loaded, as_array(inputs)))


def predict_all(model: bytes | Path, inputs: Tensor) -> Tensor:
    """Return an ONNX file's probabilities for any number of inputs."""
    return torch.from_numpy(probabilities(model, as_array(inputs)))


def probabilities(model: bytes | Path, inputs: Array) -> Array:
    """Return an ONNX file's probabilities for any number of inputs, without torch."""
    loaded = session(model)
    return np.concatenate([_run(loaded, inputs[part]) for part in _batches(len(inputs))])


def _run(loaded: onnxruntime.InferenceSession, inputs: Array) -> Array:
    try:
        (found,) = loaded.run([OUTPUT], {loaded.get_inputs()[0].name: inputs})
    except Exception as error:  # as in `session`
        raise ExportError(
            f"ONNX Runtime cannot run the model on inputs {inputs.shape} of "
            f"{inputs.dtype} ({first_line(error)})"
        ) from error
    array: Array = found
    return array


def reference(module: nn.Module, spec: ModelSpec, inputs: Tensor) -> Reference:
    """Return torch's probabilities for inputs that an exported model is compared on.

    Args:
        module: the network, with its weights; it is neither changed nor moved.
        spec: the network's inputs and labels.
        inputs: the device's own samples: uint8 [N, C, H, W], or tokens int64 [N, length].

    Raises:
        ExportError: there are no inputs, or not of this spec.
    """
    from fededge.export.tracing import Deployed

    _check_inputs(inputs, spec)
    deployed, inputs = Deployed(module, spec), inputs.cpu()
    with torch.inference_mode():
        found = torch.cat([deployed(inputs[part]) for part in _batches(len(inputs))])
    return Reference(as_array(inputs), as_array(found))


def check(
    model: bytes | Path, module: nn.Module, spec: ModelSpec, inputs: Tensor, atol: float = 1e-4
) -> Parity:
    """Compare an exported model with the module it was made from, on a device's own inputs.

    Raises:
        ExportError: they disagree, or there are no inputs.
    """
    data = model if isinstance(model, bytes) else _read(model)
    return compare(data, reference(module, spec, inputs), atol)


def compare(model: bytes, expected: Reference, atol: float = 1e-4) -> Parity:
    """Compare an exported model with torch's probabilities; ExportError if they disagree.

    Labels can differ only where the two best probabilities are closer than `2 * atol`: that
    follows from the bound.
    """
    if not np.isfinite(expected.probabilities).all():
        raise ExportError("the model's probabilities are not finite: it must not be exported")
    found = probabilities(model, expected.inputs)
    difference = float(np.abs(found - expected.probabilities).max())
    if not difference <= atol:  # also when ONNX Runtime gives NaN
        raise ExportError(
            f"the exported model differs from torch by {difference:.1e} in a probability "
            f"(at most {atol:.0e} is allowed): it is not published"
        )
    predicted = found.argmax(1)
    same = int((expected.probabilities.argmax(1) == predicted).sum())
    return Parity(hashlib.sha256(model).hexdigest(), len(predicted), difference, same, predicted)


def _batches(count: int) -> Iterator[slice]:
    """Yield one input alone, as apps send it, then batches: both sizes must work."""
    yield slice(0, 1)
    for start in range(1, count, BATCH):
        yield slice(start, start + BATCH)


def _check_inputs(inputs: Tensor, spec: ModelSpec) -> None:
    dtype = torch.int64 if spec.kind == "text" else torch.uint8
    if inputs.dtype != dtype or tuple(inputs.shape[1:]) != spec.shape:
        raise ExportError(
            f"an export is compared on {dtype} {spec.kind}s of shape {spec.shape}, "
            f"got {inputs.dtype} {tuple(inputs.shape)}"
        )
    if not len(inputs):
        raise ExportError(
            f"an export is compared on the device's own {spec.kind}s, but there are none"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ExportError(f"{path}: cannot be read ({error.strerror})") from error
