"""The export of a global model: as an ONNX file with its manifest, or as weights for a new run."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import msgspec

from fededge._internal.lazy_torch import torch
from fededge.config import CoordinatorConfig, ModelConfig
from fededge.data.local import evaluation_set, model_spec
from fededge.errors import StoreError, WireError
from fededge.export import ModelManifest, ModelRegistry, Origin, Template, make_candidate
from fededge.export.tracing import examples
from fededge.federated.warm_start import WeightsOrigin, write_weights
from fededge.flat import FlatModel, Layout, Vector
from fededge.models import build_for, load
from fededge.wire import tensors

__all__ = ["export_version", "export_weights"]


class VersionFacts(Protocol):
    """The journal's record of a version."""

    @property
    def version(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def accuracy(self) -> float | None: ...


COMPARED = 64
"""Samples on which ONNX Runtime is compared with torch: the coordinator's, else random ones."""

DEVICE = "coordinator"
"""Stands for the device in the manifest of a global model."""


def export_version(
    config: CoordinatorConfig, entry: VersionFacts, path: Path, folder: Path, run: str
) -> ModelManifest:
    """Write a version of the global model into a folder, as agents write personal ones.

    Args:
        config: the coordinator's.
        entry: what the journal has of the version.
        path: the file of its model.
        folder: a new or empty folder.
        run: the run's id.

    Raises:
        ExportError: if ONNX Runtime and torch differ; nothing is written then.
    """
    if folder.exists() and any(folder.iterdir()):
        raise StoreError(f"--out {folder}: it is not empty; choose another folder")
    spec = model_spec(_announced(config.model), config.data)
    net = FlatModel(build_for(spec, config.seed), trains=False)
    net.swap(torch.from_numpy(_read(path, entry, net.layout)))
    judged = config.data.source != "none"
    inputs = evaluation_set(config.data, spec).x if judged else examples(spec, COMPARED)
    template = Template.trace(net.module, spec)
    candidate = make_candidate(net, template, _origin(config, entry, run), inputs[:COMPARED])
    return ModelRegistry(folder).publish(candidate)


def export_weights(
    config: CoordinatorConfig, entry: VersionFacts, path: Path, target: Path
) -> None:
    """Write a version's weights as a file that a new run can begin with.

    Args:
        config: the coordinator's.
        entry: what the journal has of the version.
        path: the file of its model.
        target: is replaced if it is there.
    """
    spec = model_spec(_announced(config.model), config.data)
    layout = FlatModel(build_for(spec, config.seed), trains=False).layout
    origin = WeightsOrigin(
        federation=config.federation,
        version=entry.version,
        sha256=entry.sha256,
        labels=spec.labels,
        mean=spec.mean,
        std=spec.std,
    )
    write_weights(target, layout, _read(path, entry, layout), origin)


def _announced(model: ModelConfig) -> ModelConfig:
    return msgspec.structs.replace(model, name=load(model.name))


def _read(path: Path, entry: VersionFacts, layout: Layout) -> Vector:
    """A version's numbers, checked; the coordinator may run meanwhile."""
    if not path.exists():
        raise StoreError(f"{path}: the model of this version was pruned (keep_versions)")
    try:
        with path.open("rb") as file:
            model = tensors.decode(layout, file)["model"]
    except (OSError, WireError) as error:
        raise StoreError(f"{path}: unreadable ({error})") from None
    if layout.sha256(model) != entry.sha256:
        raise StoreError(f"{path}: damaged, its SHA-256 is not the journal's")
    return model


def _origin(config: CoordinatorConfig, entry: VersionFacts, run: str) -> Origin:
    return Origin(
        federation=config.federation,
        device=DEVICE,
        method=config.method,
        run=run,
        version=entry.version,
        round=entry.round,
        accuracy=entry.accuracy,
        created=datetime.now(timezone.utc),
    )
