"""The part of `manifest.json` that an app needs, read without msgspec, and names of files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError, StoreError
from fededge.predictor.providers import first_line
from fededge.storage.files import read_bounded

__all__ = [
    "BAD",
    "CURRENT",
    "FILE_NAME",
    "FP32",
    "LARGEST_MANIFEST",
    "LARGEST_MODEL",
    "MANIFEST",
    "MODEL",
    "ModelFile",
    "ModelInput",
    "chosen",
    "read",
]

MODEL, MANIFEST, BAD = "model.onnx", "manifest.json", "bad.json"
CURRENT = "current"
"""The link to the folder of the model in use."""

# The variant that always exists, and the default of `use`.
FP32 = "fp32"
# Far more than the labels of any model need.
LARGEST_MANIFEST = 16 << 20
# The limit of protobuf, and so of ONNX, for one file.
LARGEST_MODEL = (1 << 31) - 1
# Numbers of one input; a colour image of 8192 x 8192 has fewer.
LARGEST_INPUT = 1 << 28
# A file lies beside its manifest, so its name must not be a path.
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class ModelFile:
    """One of a model's files: fp32, or a smaller variant."""

    variant: str
    name: str
    sha256: str


@dataclass(frozen=True)
class ModelInput:
    """A model's input: images of this shape, or texts of this many tokens."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["uint8", "int64"]
    largest: int

    @property
    def kind(self) -> Literal["image", "text"]:
        return "image" if self.dtype == "uint8" else "text"

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> ModelInput:
        about = manifest["input"]
        return cls(about["name"], tuple(about["shape"]), about["dtype"], about["range"][1])


def read(path: Path) -> dict[str, Any]:
    """Read the manifest and check the keys used here; other keys are ignored."""
    try:
        manifest = json.loads(read_bounded(path, LARGEST_MANIFEST))
        # Refuses NaN and lone surrogates, which JSON text can hold but cannot be encoded again.
        json.dumps(manifest, ensure_ascii=False, allow_nan=False).encode()
        valid = _is_valid(manifest)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON ({first_line(error)})") from error
    except KeyError as error:
        raise StoreError(f"{path}: not a manifest of an exported model (no {error})") from error
    except TypeError:
        valid = False
    if not valid:
        raise StoreError(f"{path}: not a manifest of an exported model (a value is not valid)")
    about = manifest["input"]
    if (about["dtype"], len(about["shape"])) not in (("uint8", 3), ("int64", 1)):
        raise StoreError(
            f"{path}: the model takes {about['dtype']} of shape {about['shape']}; this FedEdge "
            "supports only images (uint8: channels, height, width) and texts (int64: tokens)"
        )
    return dict(manifest)


def chosen(manifest: dict[str, Any], wanted: str | None) -> ModelFile:
    """The file of the wanted variant, or of the variant that the device's agent has chosen."""
    files = {FP32: ModelFile(FP32, MODEL, manifest["sha256"])}
    for name, about in manifest.get("variants", {}).items():
        files[name] = ModelFile(name, about["file"], about["sha256"])
    if wanted is not None and wanted not in files:
        raise ConfigError(f"the model has {unknown('variant', wanted, files)}")
    return files[wanted or manifest.get("use", FP32)]


def _is_valid(manifest: Any) -> bool:
    about = manifest["input"]
    return (
        _all_are(str, manifest["labels"])
        and _all_are(int, [manifest["round"], *about["shape"], *about["range"]])
        and 0 <= manifest["round"] < 1 << 63
        and isinstance(manifest["sha256"], str)
        and isinstance(about["name"], str)
        and isinstance(about["dtype"], str)
        and isinstance(about["shape"], list)
        and all(size > 0 for size in about["shape"])
        and math.prod(about["shape"]) <= LARGEST_INPUT
        and len(about["range"]) == 2
        and 0 <= about["range"][1] < 1 << 63
        and _variants_are_valid(manifest.get("variants", {}), manifest.get("use", FP32))
    )


def _variants_are_valid(variants: Any, use: object) -> bool:
    known = isinstance(variants, dict) and (use == FP32 or use in variants)
    return known and all(
        isinstance(about["sha256"], str)
        and isinstance(about["file"], str)
        and FILE_NAME.fullmatch(about["file"]) is not None
        for about in variants.values()
    )


def _all_are(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
