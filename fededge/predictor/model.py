"""A model folder, verified against its manifest and loaded into ONNX Runtime."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fededge.errors import StoreError
from fededge.predictor.manifest import (
    FP32,
    LARGEST_MODEL,
    MANIFEST,
    MODEL,
    ModelFile,
    ModelInput,
    chosen,
    read,
)
from fededge.predictor.providers import Provider, first_line, start
from fededge.predictor.signature import check_signature
from fededge.storage.files import read_bounded

__all__ = ["About", "Fingerprint", "LoadOptions", "Model", "fingerprint"]

log = logging.getLogger(__name__)

# Inputs per call of the network: bounds the memory without changing results.
BATCH = 64

Fingerprint = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class LoadOptions:
    """An app's options for loading a model; None leaves the choice to FedEdge or the agent."""

    provider: str | None = None
    variant: str | None = None
    threads: int = 1
    trusted_key: Path | None = None
    engine_cache: Path | None = None


@dataclass(frozen=True, eq=False)
class About:
    """Facts about a loaded model; `version` identifies the exact file of this `variant`.

    The version is the manifest's round and the beginning of the file's SHA-256, in the same form
    as versions of global models.
    """

    folder: Path
    manifest: Mapping[str, Any]
    version: str
    variant: str
    labels: tuple[str, ...]
    input: ModelInput
    provider: Provider


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model. It is immutable, so threads share it; the garbage collector frees it."""

    about: About
    session: Any
    output: str

    @classmethod
    def load(cls, folder: Path, options: LoadOptions) -> Model:
        """Verify the files of a folder, load the model, and run it once.

        A variant that the agent has chosen, not the app, falls back to fp32.

        Raises:
            StoreError: a file is missing, damaged or not signed, or the model does not run.
            ConfigError: the requested provider or variant is not available.
        """
        manifest = read(folder / MANIFEST)
        if options.trusted_key is not None:
            check_signature(folder / MANIFEST, manifest, options.trusted_key)
        file = chosen(manifest, options.variant)
        if options.variant is not None or file.variant == FP32:
            return cls._of(folder, manifest, file, options)
        try:
            return cls._of(folder, manifest, file, options)
        except StoreError as error:
            log.warning("%s cannot be used, falling back to fp32: %s", file.variant, error)
            return cls._of(folder, manifest, chosen(manifest, FP32), options)

    @classmethod
    def _of(
        cls, folder: Path, manifest: dict[str, Any], file: ModelFile, options: LoadOptions
    ) -> Model:
        path = folder / file.name
        data = _read(path)
        _check_hash(path, data, file)
        about_input = ModelInput.of(manifest)
        try:
            session, provider = start(data, options.provider, options.threads, options.engine_cache)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
        about = About(
            folder=folder,
            manifest=MappingProxyType(manifest),
            version=f"{manifest['round']:06d}-{file.sha256[:16]}",
            variant=file.variant,
            labels=tuple(manifest["labels"]),
            input=about_input,
            provider=provider,
        )
        model = cls(about, session, session.get_outputs()[0].name)
        model._try(path)
        return model

    def run(self, batch: np.ndarray) -> np.ndarray:
        """The probabilities [N, labels] for pixels uint8 [N, C, H, W] or tokens int64 [N, L]."""
        if 0 < len(batch) <= BATCH:
            return self._run(batch)
        parts = [self._run(batch[i : i + BATCH]) for i in range(0, len(batch), BATCH)]
        return np.concatenate([np.empty((0, len(self.about.labels)), np.float32), *parts])

    def _run(self, batch: np.ndarray) -> np.ndarray:
        """Copy the result, because ONNX Runtime's array keeps its session's memory alive."""
        (probabilities,) = self.session.run([self.output], {self.about.input.name: batch})
        return np.array(probabilities)

    def _try(self, path: Path) -> None:
        """Run one black image or empty text, to check the model's output and to warm it up."""
        about = self.about.input
        try:
            rows = self.run(np.zeros((1, *about.shape), about.dtype))
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise StoreError(f"{path}: the model does not run ({first_line(error)})") from error
        if rows.shape != (1, len(self.about.labels)) or not np.isfinite(rows).all():
            raise StoreError(f"{path}: the model does not give one probability per label")


def fingerprint(folder: str | Path) -> Fingerprint | None:
    """A value that changes when one of the two files does; None if one is missing."""
    try:
        found = [os.stat(os.path.join(folder, name)) for name in (MODEL, MANIFEST)]
    except OSError:
        return None
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in found)


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, LARGEST_MODEL)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error


def _check_hash(path: Path, data: bytes, file: ModelFile) -> None:
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise StoreError(
            f"{path}: damaged or incomplete, its SHA-256 begins with {digest[:16]}, the manifest "
            f"says {file.sha256[:16]}"
        )
