"""A candidate model: its files and manifest in memory, checked against torch and measured."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import numpy as np

from fededge._internal.lazy_torch import Tensor
from fededge.errors import ExportError
from fededge.export.float16 import to_float16
from fededge.export.manifest import ModelFacts, ModelManifest, Origin, Variant, as_text
from fededge.export.parity import (
    Array,
    Parity,
    Reference,
    as_array,
    compare,
    probabilities,
    reference,
)
from fededge.export.quantisation import to_int8
from fededge.export.template import Template
from fededge.flat import FlatModel, Vector
from fededge.predictor.manifest import MODEL
from fededge.predictor.signature import signed_bytes

__all__ = ["VARIANTS", "Candidate", "Samples", "fill_candidate", "import_tools", "make_candidate"]

log = logging.getLogger(__name__)


VARIANTS = ("fp16", "int8")


class Signer(Protocol):
    """A private key."""

    def sign(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, eq=False)
class Samples:
    """A device's own samples: training samples to calibrate on, held-out ones to measure on."""

    training: Tensor | Array
    held_x: Tensor | Array
    held_y: Tensor | Array


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

    @property
    def model(self) -> bytes:
        """The float32 file."""
        return self.files[MODEL]

    def with_variants(
        self, names: Sequence[str], weights: Sequence[str], samples: Samples
    ) -> Candidate:
        """Add these variants; log a warning for one that cannot be made or does not run."""
        candidate, float32 = self, _probabilities(self.files[MODEL], samples)
        for name in names:
            try:
                data = _make_variant(name, self.files[MODEL], weights, as_array(samples.training))
                candidate = candidate._with_variant(name, data, float32, samples)
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

    def _with_variant(self, name: str, data: bytes, float32: Array, samples: Samples) -> Candidate:
        found = _probabilities(data, samples)
        difference = float(np.abs(found - float32).max())
        if not difference <= 1:
            raise ExportError("its probabilities are not finite")
        accuracy = _accuracy(found, as_array(samples.held_y))
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


def import_tools(variants: Sequence[str]) -> None:
    """Import ONNX Runtime, and the tools for these variants, if they are installed."""
    tools = ["onnxruntime", *(["onnx"] if variants else [])]
    tools += ["onnxruntime.quantization"] if "int8" in variants else []
    for name in tools:
        with contextlib.suppress(ImportError):  # the export says so
            importlib.import_module(name)


def make_candidate(
    flat: FlatModel, template: Template, origin: Origin, inputs: Tensor
) -> Candidate:
    """Export a float32 model; raise ExportError if it differs from torch on these inputs."""
    expected = reference(flat.module, template.spec, inputs)
    return fill_candidate(template, flat.vector, origin, expected)


def fill_candidate(
    template: Template, vector: Tensor | Vector, origin: Origin, expected: Reference
) -> Candidate:
    """Export a float32 model without torch; raise ExportError if it does not give `expected`."""
    facts = ModelFacts.of(origin, template.spec, template.layout, vector)
    model = template.fill(vector, facts.metadata())
    return Candidate.of(model, compare(model, expected), facts)


def _make_variant(name: str, model: bytes, weights: Sequence[str], training: Array) -> bytes:
    import onnx

    data = to_float16(model, weights) if name == "fp16" else to_int8(model, training)
    try:
        onnx.checker.check_model(data, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"its graph is invalid ({error})") from error
    return data


def _probabilities(model: bytes, samples: Samples) -> Array:
    """Return a file's probabilities for the held-out data, or else the training data."""
    inputs = samples.held_x if len(samples.held_x) else samples.training
    return probabilities(model, as_array(inputs))


def _with_metadata(model: bytes, key: str, text: str) -> bytes:
    """Replace a value in the model's metadata."""
    import onnx

    proto = onnx.load_model_from_string(model)
    for entry in proto.metadata_props:
        if entry.key == key:
            entry.value = text
    data: bytes = proto.SerializeToString()
    return data


def _accuracy(found: Array, labels: Array) -> float | None:
    return float((found.argmax(1) == labels).mean()) if len(labels) else None
