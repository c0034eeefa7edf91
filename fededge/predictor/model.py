"""A model folder, checked against its manifest and loaded into ONNX Runtime."""

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
from fededge.predictor.manifest import MANIFEST, MODEL, PLAIN, File, Input, chosen, read
from fededge.predictor.providers import Provider, first_line, start
from fededge.predictor.signature import check_signature
from fededge.storage.files import read_bounded

__all__ = ["About", "Model", "Signature", "Wanted", "signature"]

log = logging.getLogger(__name__)

# What protobuf, and so ONNX, allows in one file.
LARGEST_MODEL = (1 << 31) - 1
# How many inputs go through the network at once: bounds the memory, changes no result.
BATCH = 64

Signature = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Wanted:
    """What an app asks for; None leaves the choice to FedEdge, or to the device's agent."""

    provider: str | None = None
    variant: str | None = None
    threads: int = 1
    trusted_key: Path | None = None
    engine_cache: Path | None = None


@dataclass(frozen=True, eq=False)
class About:
    """What is known of a loaded model; `version` names its exact file, of this `variant`.

    The version is the round of the manifest and the beginning of the file's SHA-256, in the form
    of the global models' versions.
    """

    folder: Path
    manifest: Mapping[str, Any]
    version: str
    variant: str
    labels: tuple[str, ...]
    input: Input
    provider: Provider


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model. Never changed, so that threads share it; dropped when nobody asks it."""

    about: About
    session: Any
    output: str

    @classmethod
    def load(cls, folder: Path, wanted: Wanted) -> Model:
        """Check the files of a folder against each other, load the model, and let it run once.

        Raises:
            StoreError: a file is missing, damaged or not signed, or the model does not run. A
                variant that the agent has chosen, and not the app, gives way to float32 first.
            ConfigError: the wanted provider or variant cannot be had.
        """
        manifest = read(folder / MANIFEST)
        if wanted.trusted_key is not None:
            check_signature(folder / MANIFEST, manifest, wanted.trusted_key)
        file = chosen(manifest, wanted.variant)
        if wanted.variant is not None or file.variant == PLAIN:
            return cls._of(folder, manifest, file, wanted)
        try:
            return cls._of(folder, manifest, file, wanted)
        except StoreError as error:
            log.warning("%s cannot be used, float32 takes its place: %s", file.variant, error)
            return cls._of(folder, manifest, chosen(manifest, PLAIN), wanted)

    @classmethod
    def _of(cls, folder: Path, manifest: dict[str, Any], file: File, wanted: Wanted) -> Model:
        path = folder / file.name
        data = _read(path)
        _check_hash(path, data, file)
        about_input = Input.of(manifest)
        try:
            session, provider = start(data, wanted.provider, wanted.threads, wanted.engine_cache)
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
        """A copy: the array of ONNX Runtime keeps the memory of its session for as long."""
        (probabilities,) = self.session.run([self.output], {self.about.input.name: batch})
        return np.array(probabilities)

    def _try(self, path: Path) -> None:
        """One black image, or one empty text: shows a model that does not fit, and warms it up."""
        about = self.about.input
        try:
            rows = self.run(np.zeros((1, *about.shape), about.dtype))
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise StoreError(f"{path}: the model does not run ({first_line(error)})") from error
        if rows.shape != (1, len(self.about.labels)) or not np.isfinite(rows).all():
            raise StoreError(f"{path}: the model gives no probability for each of its labels")


def signature(folder: str | Path) -> Signature | None:
    """What changes when one of the two files does; None if they are not both there."""
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


def _check_hash(path: Path, data: bytes, file: File) -> None:
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise StoreError(
            f"{path}: damaged or half written, its SHA-256 begins with {digest[:16]} and the "
            f"manifest says {file.sha256[:16]}"
        )
