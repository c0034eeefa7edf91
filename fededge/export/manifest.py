"""What is written about an exported model: into the ONNX file, and beside it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from torch import Tensor

from fededge import __version__
from fededge.errors import StoreError
from fededge.export.tracing import input_name
from fededge.flat import Layout
from fededge.model_spec import ModelSpec
from fededge.predictor.manifest import FILE_NAME, LARGEST_MANIFEST
from fededge.storage.files import read_bounded

__all__ = ["Facts", "Input", "Manifest", "Origin", "Variant", "as_text"]

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Meta(pattern=rf"^{FILE_NAME.pattern}$")]


class Origin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a personal model comes from; `accuracy` is the one on the device's held-out data."""

    federation: str
    device: str
    method: str
    run: str = ""
    version: str
    round: Count
    accuracy: Share | None
    created: Annotated[datetime, Meta(tz=True)]


class Input(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an app feeds: `shape` is that of one image or text; the batch comes before it."""

    name: str = "image"
    shape: tuple[int, ...]
    dtype: Literal["uint8", "int64"] = "uint8"
    range: tuple[int, int] = (0, 255)

    @classmethod
    def of(cls, spec: ModelSpec) -> Input:
        if spec.kind == "image":
            return cls(shape=spec.shape)
        most = spec.vocabulary - 1
        return cls(name=input_name(spec), shape=spec.shape, dtype="int64", range=(0, most))


class Facts(Origin, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known before the file is written, and so can stand in it.

    `weights` is the hash of the model's numbers: it is the same whenever they are written.
    """

    labels: tuple[str, ...]
    input: Input
    layout: Sha256
    weights: Sha256
    fededge: str

    @classmethod
    def of(cls, origin: Origin, spec: ModelSpec, layout: Layout, vector: Tensor) -> Facts:
        return cls(
            **msgspec.structs.asdict(origin),
            labels=spec.labels,
            input=Input.of(spec),
            layout=layout.hash,
            weights=layout.sha256(vector),
            fededge=__version__,
        )

    def metadata(self) -> dict[str, str]:
        """For ONNX's `metadata_props`: texts as they are, everything else as JSON."""
        return {key: as_text(value) for key, value in msgspec.to_builtins(self).items()}


class Variant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A smaller file of the same model, with what was measured on the device.

    `difference` is the largest one of a probability to the float32 file, on held-out data.
    """

    file: FileName
    sha256: Sha256
    size: Count
    accuracy: Share | None
    difference: Annotated[float, Meta(ge=0)]


class Manifest(Facts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`manifest.json`: the facts, and what is known only of the finished and compared files."""

    sha256: Sha256
    size: Count
    compared: Count
    difference: Annotated[float, Meta(ge=0)]
    variants: dict[str, Variant] = {}
    use: str = "fp32"
    signature: Annotated[str, Meta(pattern="^([0-9a-f]{128})?$")] = ""

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def read(cls, path: Path) -> Manifest:
        try:
            return msgspec.json.decode(read_bounded(path, LARGEST_MANIFEST), type=cls)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
        except msgspec.MsgspecError as error:
            raise StoreError(f"{path}: not a manifest of an exported model ({error})") from error


def as_text(value: object) -> str:
    """How a value stands in the metadata of an ONNX file."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
