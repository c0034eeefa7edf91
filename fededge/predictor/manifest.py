"""What an app needs of `manifest.json`, read without msgspec: which file, which input."""

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

__all__ = ["MANIFEST", "MODEL", "PLAIN", "File", "Input", "chosen", "read"]

MODEL, MANIFEST = "model.onnx", "manifest.json"
# The variant that is always there, and what the agent chooses when it says nothing.
PLAIN = "fp32"
# Far more than the labels of any model need.
LARGEST_MANIFEST = 16 << 20
# Numbers of one input; a picture of 8192 x 8192 in colour has fewer.
LARGEST_INPUT = 1 << 28
# A file stands beside its manifest, so its name is a plain name and no path.
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class File:
    """One of a model's files: the float32 one, or a smaller variant of it."""

    variant: str
    name: str
    sha256: str


@dataclass(frozen=True)
class Input:
    """What the model takes: images of this shape, or texts of so many tokens."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["uint8", "int64"]
    largest: int

    @property
    def kind(self) -> Literal["image", "text"]:
        return "image" if self.dtype == "uint8" else "text"

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Input:
        about = manifest["input"]
        return cls(about["name"], tuple(about["shape"]), about["dtype"], about["range"][1])


def read(path: Path) -> dict[str, Any]:
    """The manifest, and what is used of it checked; other keys are for others."""
    try:
        manifest = json.loads(read_bounded(path, LARGEST_MANIFEST))
        # Also what JSON can say and nobody can pass on: NaN, and half of a surrogate pair.
        json.dumps(manifest, ensure_ascii=False, allow_nan=False).encode()
        fits = _fits(manifest)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON ({first_line(error)})") from error
    except KeyError as error:
        raise StoreError(f"{path}: not a manifest of an exported model (no {error})") from error
    except TypeError:
        fits = False
    if not fits:
        raise StoreError(
            f"{path}: not a manifest of an exported model (a value is none that it may have)"
        )
    about = manifest["input"]
    if (about["dtype"], len(about["shape"])) not in (("uint8", 3), ("int64", 1)):
        raise StoreError(
            f"{path}: the model takes {about['dtype']} of shape {about['shape']}, and this FedEdge "
            "knows images (uint8 of channels, height and width) and texts (int64 of tokens) only"
        )
    return dict(manifest)


def chosen(manifest: dict[str, Any], wanted: str | None) -> File:
    """The file of the wanted variant, or else of the one that the device's agent has chosen."""
    files = {PLAIN: File(PLAIN, MODEL, manifest["sha256"])}
    for name, about in manifest.get("variants", {}).items():
        files[name] = File(name, about["file"], about["sha256"])
    if wanted is not None and wanted not in files:
        raise ConfigError(f"the model has {unknown('variant', wanted, files)}")
    return files[wanted or manifest.get("use", PLAIN)]


def _fits(manifest: Any) -> bool:
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
        and _variants_fit(manifest.get("variants", {}), manifest.get("use", PLAIN))
    )


def _variants_fit(variants: Any, use: object) -> bool:
    known = isinstance(variants, dict) and (use == PLAIN or use in variants)
    return known and all(
        isinstance(about["sha256"], str)
        and isinstance(about["file"], str)
        and FILE_NAME.fullmatch(about["file"]) is not None
        for about in variants.values()
    )


def _all_are(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
