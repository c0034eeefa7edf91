"""A model's files and its manifest in memory: compared with torch, measured, ready to write."""

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
from fededge.export.float16 import halved
from fededge.export.manifest import Facts, Manifest, Origin, Variant, as_text
from fededge.export.parity import Parity, check, predict_all
from fededge.export.quantisation import quantised
from fededge.export.template import Template
from fededge.flat import FlatModel
from fededge.predictor.manifest import MODEL
from fededge.predictor.signature import signed_bytes

__all__ = ["VARIANTS", "Draft", "Samples", "compared"]

log = logging.getLogger(__name__)


VARIANTS = ("fp16", "int8")


class Signer(Protocol):
    """A private key."""

    def sign(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, eq=False)
class Samples:
    """The device's own: some that it trained on, to calibrate, and those held out, to measure."""

    training: Tensor
    held_x: Tensor
    held_y: Tensor


@dataclass(frozen=True, eq=False)
class Draft:
    """`files` by their names; the manifest has the hash of each."""

    manifest: Manifest
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, model: bytes, parity: Parity, facts: Facts) -> Draft:
        """A float32 model; the comparison must have been made with exactly these bytes."""
        digest = hashlib.sha256(model).hexdigest()
        if parity.sha256 != digest:
            raise ExportError("this model is not the one that was compared: it is not published")
        manifest = Manifest(
            **msgspec.structs.asdict(facts),
            sha256=digest,
            size=len(model),
            compared=parity.samples,
            difference=parity.difference,
        )
        return cls(manifest, {MODEL: model})

    def with_variants(
        self, names: Sequence[str], weights: Sequence[str], samples: Samples
    ) -> Draft:
        """Add these variants; one that cannot be made, or does not run, is left out with a line."""
        draft, reference = self, _answers(self.files[MODEL], samples)
        for name in names:
            try:
                data = _variant(name, self.files[MODEL], weights, samples.training)
                draft = draft._with(name, data, reference, samples)
            except ExportError as error:
                log.warning("there is no %s variant of this model: %s", name, error)
        return draft

    def preferring(self, name: str, max_drop: float) -> Draft:
        """Use a variant if it was measured, and loses at most so many points; else float32."""
        variant = self.manifest.variants.get(name)
        reference = self.manifest.accuracy
        if variant is None or variant.accuracy is None or reference is None:
            return self
        if 100 * (reference - variant.accuracy) > max_drop + 1e-9:
            log.info(
                "%s is %.1f%% right, float32 %.1f%%: apps get float32",
                name, 100 * variant.accuracy, 100 * reference,
            )  # fmt: skip
            return self
        return replace(self, manifest=msgspec.structs.replace(self.manifest, use=name))

    def signed(self, key: Signer) -> Draft:
        """With the key's signature of the manifest, and so of the hash of every file."""
        bare = msgspec.to_builtins(self.manifest)
        signature = key.sign(signed_bytes(bare)).hex()
        manifest = msgspec.structs.replace(self.manifest, signature=signature)
        return replace(self, manifest=manifest)

    def _with(self, name: str, data: bytes, reference: Tensor, samples: Samples) -> Draft:
        answers = _answers(data, samples)
        difference = (answers - reference).abs().max().item()
        if not difference <= 1:
            raise ExportError("its probabilities are not finite")
        accuracy = _accuracy(answers, samples.held_y)
        data = _saying(data, "accuracy", as_text(accuracy))
        about = Variant(
            file=f"model.{name}.onnx",
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            accuracy=accuracy,
            difference=difference,
        )
        variants = {**self.manifest.variants, name: about}
        manifest = msgspec.structs.replace(self.manifest, variants=variants)
        return Draft(manifest, {**self.files, about.file: data})


def compared(flat: FlatModel, template: Template, origin: Origin, inputs: Tensor) -> Draft:
    """A float32 model that says what torch says about these inputs, or an ExportError."""
    facts = Facts.of(origin, template.spec, template.layout, flat.vector)
    model = template.fill(flat.vector, facts.metadata())
    return Draft.of(model, check(model, flat.module, template.spec, inputs), facts)


def _variant(name: str, model: bytes, weights: Sequence[str], training: Tensor) -> bytes:
    import onnx

    data = halved(model, weights) if name == "fp16" else quantised(model, training)
    try:
        onnx.checker.check_model(data, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"its graph is invalid ({error})") from error
    return data


def _answers(model: bytes, samples: Samples) -> Tensor:
    """What a file says about the held-out data; about the training data if there is none."""
    return predict_all(model, samples.held_x if len(samples.held_x) else samples.training)


def _saying(model: bytes, key: str, text: str) -> bytes:
    """The same model with another value in its metadata."""
    import onnx

    proto = onnx.load_model_from_string(model)
    for entry in proto.metadata_props:
        if entry.key == key:
            entry.value = text
    data: bytes = proto.SerializeToString()
    return data


def _accuracy(answers: Tensor, labels: Tensor) -> float | None:
    if not len(labels):
        return None
    return float((answers.argmax(1) == labels.to(torch.int64)).double().mean())
