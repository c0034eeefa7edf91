"""The facts about an exported model: in the ONNX file's metadata, and in `manifest.json`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fededge import __version__
from fededge.errors import StoreError
from fededge.model_spec import ModelSpec
from fededge.predictor.manifest import FILE_NAME, LARGEST_MANIFEST
from fededge.storage.files import read_bounded

if TYPE_CHECKING:
    from torch import Tensor

    from fededge.flat import Layout, Vector

__all__ = [
    "INPUT",
    "OUTPUT",
    "TOKENS",
    "InputSpec",
    "ModelFacts",
    "ModelManifest",
    "Origin",
    "Variant",
    "as_text",
    "input_name",
]

INPUT, TOKENS = "image", "tokens"
"""Names of the ONNX file's input."""

OUTPUT = "probabilities"
"""Name of the ONNX file's output."""

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Meta(pattern=rf"^{FILE_NAME.pattern}$")]


def input_name(spec: ModelSpec) -> str:
    """Return the name of the ONNX file's input."""
    return TOKENS if spec.kind == "text" else INPUT


class Origin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The origin of a personal model; `accuracy` is on the device's held-out data."""

    federation: str
    device: str
    method: str
    run: str = ""
    version: str
    round: Count
    accuracy: Share | None
    created: Annotated[datetime, Meta(tz=True)]


class InputSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's input: `shape` is of one image or text, without the batch dimension."""

    name: str = "image"
    shape: tuple[int, ...]
    dtype: Literal["uint8", "int64"] = "uint8"
    range: tuple[int, int] = (0, 255)

    @classmethod
    def of(cls, spec: ModelSpec) -> InputSpec:
        if spec.kind == "image":
            return cls(shape=spec.shape)
        most = spec.vocabulary - 1
        return cls(name=input_name(spec), shape=spec.shape, dtype="int64", range=(0, most))


class ModelFacts(Origin, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts known before the ONNX file is written: its metadata.

    `weights` is the hash of the model's numbers: equal for every export of them.
    """

    labels: tuple[str, ...]
    input: InputSpec
    layout: Sha256
    weights: Sha256
    fededge: str

    @classmethod
    def of(
        cls, origin: Origin, spec: ModelSpec, layout: Layout, vector: Tensor | Vector
    ) -> ModelFacts:
        return cls(
            **msgspec.structs.asdict(origin),
            labels=spec.labels,
            input=InputSpec.of(spec),
            layout=layout.hash,
            weights=layout.sha256(vector),
            fededge=__version__,
        )

    def metadata(self) -> dict[str, str]:
        """Return ONNX's `metadata_props`: texts unchanged, everything else as JSON."""
        return {key: as_text(value) for key, value in msgspec.to_builtins(self).items()}


class Variant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A smaller file of the same model, and its measurements on the device.

    `difference` is the largest difference of a probability to the float32 file, on held-out data.
    """

    file: FileName
    sha256: Sha256
    size: Count
    accuracy: Share | None
    difference: Annotated[float, Meta(ge=0)]


class ModelManifest(ModelFacts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`manifest.json`: the facts, and those known only of the finished and compared files."""

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
    def read(cls, path: Path) -> ModelManifest:
        try:
            return msgspec.json.decode(read_bounded(path, LARGEST_MANIFEST), type=cls)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
        except msgspec.MsgspecError as error:
            raise StoreError(f"{path}: not a manifest of an exported model ({error})") from error


def as_text(value: object) -> str:
    """Return a value as text for the metadata of an ONNX file."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
