"""Parity: the exported file in ONNX Runtime must give the probabilities that torch gives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fededge.errors import DataError, ExportError
from fededge.export.tracing import OUTPUT, Deployed
from fededge.model_spec import ModelSpec
from fededge.predictor.external_data import names_other_files
from fededge.predictor.providers import first_line

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Parity", "check", "predict", "predict_all", "session"]

# Inputs in one forward pass: bounds the memory, changes no result.
BATCH = 64


@dataclass(frozen=True)
class Parity:
    """The result of a parity check: the file with this hash agreed with torch on these samples."""

    sha256: str
    samples: int
    difference: float
    same_labels: int
    predicted: Tensor = field(repr=False, compare=False)

    def accuracy(self, labels: Tensor) -> float:
        """Return the exported file's accuracy, given the samples' true labels."""
        if labels.shape != self.predicted.shape:
            raise DataError(
                f"{len(self.predicted)} samples were compared, but {len(labels)} labels are given"
            )
        return (self.predicted == labels).double().mean().item()


def session(model: bytes | Path, threads: int = 1) -> onnxruntime.InferenceSession:
    """Load a model into ONNX Runtime, on the CPU, without its log lines.

    One thread is fastest for the small networks of an edge device, and keeps it responsive.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ExportError(
            f"an export needs ONNX Runtime, which cannot be imported ({error}); "
            "pip install onnxruntime"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    name = "the exported model" if isinstance(model, bytes) else str(model)
    data = model if isinstance(model, bytes) else _read(model)
    if wrong := names_other_files(data):
        raise ExportError(f"{name}: {wrong}")
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise ExportError(f"{name}: ONNX Runtime cannot load it ({first_line(error)})") from error


def predict(loaded: onnxruntime.InferenceSession, inputs: Tensor) -> Tensor:
    """Return ONNX Runtime's probabilities for images [N, C, H, W] or tokens [N, length]."""
    array = inputs.detach().cpu().contiguous().numpy()
    try:
        (probabilities,) = loaded.run([OUTPUT], {loaded.get_inputs()[0].name: array})
    except Exception as error:  # as above
        raise ExportError(
            f"ONNX Runtime cannot run the model on inputs {tuple(inputs.shape)} of "
            f"{inputs.dtype} ({first_line(error)})"
        ) from error
    return torch.from_numpy(probabilities)


def predict_all(model: bytes | Path, inputs: Tensor) -> Tensor:
    """Return an ONNX file's probabilities for any number of inputs."""
    loaded = session(model)
    return torch.cat([predict(loaded, batch) for batch in _batches(inputs)])


def check(
    model: bytes | Path, module: nn.Module, spec: ModelSpec, inputs: Tensor, atol: float = 1e-4
) -> Parity:
    """Compare an exported model with the module it was made from.

    Labels can differ only where the two best probabilities are closer than `2 * atol`: that
    follows from the bound.

    Args:
        model: the ONNX file or its bytes.
        module: the network, with its weights; it is neither changed nor moved.
        spec: the network's inputs and labels.
        inputs: the device's own samples: uint8 [N, C, H, W], or tokens int64 [N, length].
        atol: the largest allowed difference of a probability.

    Raises:
        ExportError: they disagree, or there are no inputs.
    """
    _check_inputs(inputs, spec)
    data = model if isinstance(model, bytes) else _read(model)
    deployed = Deployed(module, spec)
    with torch.inference_mode():
        torchs = torch.cat([deployed(batch) for batch in _batches(inputs)])
    onnxs = predict_all(data, inputs)
    return _compare(data, torchs, onnxs, atol)


def _batches(inputs: Tensor) -> Iterator[Tensor]:
    """Yield one input alone, as apps send it, then batches: both sizes must work."""
    yield inputs[:1].cpu()
    for start in range(1, len(inputs), BATCH):
        yield inputs[start : start + BATCH].cpu()


def _compare(model: bytes, torchs: Tensor, onnxs: Tensor, atol: float) -> Parity:
    if not bool(torchs.isfinite().all()):
        raise ExportError("the model's probabilities are not finite: it must not be exported")
    difference = (torchs - onnxs).abs().max().item()
    if not difference <= atol:  # also when ONNX Runtime gives NaN
        raise ExportError(
            f"the exported model differs from torch by {difference:.1e} in a probability "
            f"(at most {atol:.0e} is allowed): it is not published"
        )
    predicted = onnxs.argmax(dim=1)
    same = int((torchs.argmax(dim=1) == predicted).sum())
    digest = hashlib.sha256(model).hexdigest()
    return Parity(digest, len(predicted), difference, same, predicted)


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
