"""A model folder, checked against its manifest and loaded: `model.onnx` and `manifest.json`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fededge.errors import StoreError
from fededge.predictor.inputs import Shape
from fededge.predictor.providers import Provider, first_line, start

__all__ = ["MANIFEST", "MODEL", "About", "Model", "Signature", "signature"]

MODEL, MANIFEST = "model.onnx", "manifest.json"
# How many images go through the network at once: bounds the memory, changes no result.
BATCH = 64

Signature = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, eq=False)
class About:
    """What is known of a loaded model; `version` names its exact file.

    The version is the round of the manifest and the beginning of the file's SHA-256, in the form
    of the global models' versions.
    """

    folder: Path
    manifest: Mapping[str, Any]
    version: str
    labels: tuple[str, ...]
    shape: Shape
    provider: Provider


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model. Never changed, so that threads share it; dropped when nobody asks it."""

    about: About
    session: Any
    input: str
    output: str

    @classmethod
    def load(cls, folder: Path, provider: str | None, threads: int) -> Model:
        """Check the files of a folder against each other, load the model, and let it run once.

        Raises:
            StoreError: a file is missing or damaged, or the model does not run.
            ConfigError: the wanted provider cannot be had.
        """
        path, manifest = folder / MODEL, _manifest(folder / MANIFEST)
        data = _read(path)
        _check_hash(path, data, manifest)
        shape = _shape(path, manifest)
        try:
            session, chosen = start(data, provider, threads)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
        about = About(
            folder=folder,
            manifest=MappingProxyType(manifest),
            version=f"{manifest['round']:06d}-{manifest['sha256'][:16]}",
            labels=tuple(manifest["labels"]),
            shape=shape,
            provider=chosen,
        )
        model = cls(about, session, manifest["input"]["name"], session.get_outputs()[0].name)
        model._try(path)
        return model

    def run(self, pixels: np.ndarray) -> np.ndarray:
        """The probabilities [N, labels] for pixels uint8 [N, C, H, W]."""
        if 0 < len(pixels) <= BATCH:
            return self._run(pixels)
        parts = [self._run(pixels[i : i + BATCH]) for i in range(0, len(pixels), BATCH)]
        return np.concatenate([np.empty((0, len(self.about.labels)), np.float32), *parts])

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        (probabilities,) = self.session.run([self.output], {self.input: pixels})
        rows: np.ndarray = probabilities
        return rows

    def _try(self, path: Path) -> None:
        """One black image: shows a model that does not fit, and the first request need not wait."""
        try:
            rows = self.run(np.zeros((1, *self.about.shape), np.uint8))
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
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest, and what is used of it checked; other keys are for others."""
    try:
        manifest = json.loads(_read(path))
        fits = (
            _is_list(manifest["labels"], str)
            and isinstance(manifest["round"], int)
            and isinstance(manifest["sha256"], str)
            and isinstance(manifest["input"]["name"], str)
            and isinstance(manifest["input"]["dtype"], str)
            and _is_list(manifest["input"]["shape"], int)
        )
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON ({first_line(error)})") from error
    except KeyError as error:
        raise StoreError(f"{path}: not a manifest of an exported model (no {error})") from error
    except TypeError:
        fits = False
    if not fits:
        raise StoreError(f"{path}: not a manifest of an exported model (a value has another type)")
    return dict(manifest)


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _check_hash(path: Path, data: bytes, manifest: dict[str, Any]) -> None:
    digest = hashlib.sha256(data).hexdigest()
    if digest != manifest["sha256"]:
        raise StoreError(
            f"{path}: damaged or half written, its SHA-256 begins with {digest[:16]} and the "
            f"manifest says {manifest['sha256'][:16]}"
        )


def _shape(path: Path, manifest: dict[str, Any]) -> Shape:
    about = manifest["input"]
    if len(about["shape"]) != 3 or about["dtype"] != "uint8":
        raise StoreError(
            f"{path}: the model takes {about['dtype']} of shape {about['shape']}, and this FedEdge "
            "predicts on images only (uint8 of channels, height and width)"
        )
    channels, height, width = about["shape"]
    return channels, height, width
