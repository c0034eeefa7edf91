"""A candidate model: its files and manifest in memory, checked against torch and measured."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from fededge.errors import ExportError
from fededge.export.float16 import to_float16
from fededge.export.manifest import ModelFacts, ModelManifest, Origin, Variant, as_text
from fededge.export.parity import Parity, check, predict_all
from fededge.export.quantisation import to_int8
from fededge.export.template import Template
from fededge.flat import FlatModel
from fededge.predictor.manifest import MODEL
from fededge.predictor.signature import signed_bytes

__all__ = ["VARIANTS", "Candidate", "Samples", "make_candidate"]

log = logging.getLogger(__name__)


VARIANTS = ("fp16", "int8")


class Signer(Protocol):
    """A private key."""

    def sign(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, eq=False)
class Samples:
    """A device's own samples: training samples to calibrate on, held-out ones to measure on."""

    training: Tensor
    held_x: Tensor
    held_y: Tensor


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model's files by name, and its manifest, which has the hash of each."""

    manifest: ModelManifest
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, model: bytes, parity: Parity, facts: ModelFacts) -> Candidate:
        """Make a candidate of a float32 model; `parity` must be of exactly these bytes."""
        digest = hashlib.sha256(model).hexdigest()
        if parity.sha256 != digest:
            raise ExportError("this model is not the one that was compared: it is not published")
        manifest = ModelManifest(
            **msgspec.structs.asdict(facts),
            sha256=digest,
            size=len(model),
            compared=parity.samples,
            difference=parity.difference,
        )
        return cls(manifest, {MODEL: model})

    def with_variants(
        self, names: Sequence[str], weights: Sequence[str], samples: Samples
    ) -> Candidate:
        """Add these variants; log a warning for one that cannot be made or does not run."""
        candidate, reference = self, _probabilities(self.files[MODEL], samples)
        for name in names:
            try:
                data = _make_variant(name, self.files[MODEL], weights, samples.training)
                candidate = candidate._with_variant(name, data, reference, samples)
            except ExportError as error:
                log.warning("this model gets no %s variant: %s", name, error)
        return candidate

    def preferring(self, name: str, max_drop: float) -> Candidate:
        """Use a variant if it was measured and loses at most `max_drop` points; else float32."""
        variant = self.manifest.variants.get(name)
        reference = self.manifest.accuracy
        if variant is None or variant.accuracy is None or reference is None:
            return self
        if 100 * (reference - variant.accuracy) > max_drop + 1e-9:
            log.info(
                "%s has an accuracy of %.1f%%, float32 of %.1f%%: apps get float32",
                name, 100 * variant.accuracy, 100 * reference,
            )  # fmt: skip
            return self
        return replace(self, manifest=msgspec.structs.replace(self.manifest, use=name))

    def signed(self, key: Signer) -> Candidate:
        """Add the key's signature of the manifest, which covers the hash of every file."""
        bare = msgspec.to_builtins(self.manifest)
        signature = key.sign(signed_bytes(bare)).hex()
        manifest = msgspec.structs.replace(self.manifest, signature=signature)
        return replace(self, manifest=manifest)

    def _with_variant(
        self, name: str, data: bytes, reference: Tensor, samples: Samples
    ) -> Candidate:
        probabilities = _probabilities(data, samples)
        difference = (probabilities - reference).abs().max().item()
        if not difference <= 1:
            raise ExportError("its probabilities are not finite")
        accuracy = _accuracy(probabilities, samples.held_y)
        data = _with_metadata(data, "accuracy", as_text(accuracy))
        about = Variant(
            file=f"model.{name}.onnx",
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            accuracy=accuracy,
            difference=difference,
        )
        variants = {**self.manifest.variants, name: about}
        manifest = msgspec.structs.replace(self.manifest, variants=variants)
        return Candidate(manifest, {**self.files, about.file: data})


def make_candidate(
    flat: FlatModel, template: Template, origin: Origin, inputs: Tensor
) -> Candidate:
    """Export a float32 model; raise ExportError if it differs from torch on these inputs."""
    facts = ModelFacts.of(origin, template.spec, template.layout, flat.vector)
    model = template.fill(flat.vector, facts.metadata())
    return Candidate.of(model, check(model, flat.module, template.spec, inputs), facts)


def _make_variant(name: str, model: bytes, weights: Sequence[str], training: Tensor) -> bytes:
    import onnx

    data = to_float16(model, weights) if name == "fp16" else to_int8(model, training)
    try:
        onnx.checker.check_model(data, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"its graph is invalid ({error})") from error
    return data


def _probabilities(model: bytes, samples: Samples) -> Tensor:
    """Return a file's probabilities for the held-out data, or else the training data."""
    return predict_all(model, samples.held_x if len(samples.held_x) else samples.training)


def _with_metadata(model: bytes, key: str, text: str) -> bytes:
    """Replace a value in the model's metadata."""
    import onnx

    proto = onnx.load_model_from_string(model)
    for entry in proto.metadata_props:
        if entry.key == key:
            entry.value = text
    data: bytes = proto.SerializeToString()
    return data


def _accuracy(probabilities: Tensor, labels: Tensor) -> float | None:
    if not len(labels):
        return None
    return float((probabilities.argmax(1) == labels.to(torch.int64)).double().mean())
