"""Flat vectors as safetensors bytes: the layout's names, one kind of number, and nothing else.

int8 has a scale for each tensor of the layout, largest magnitude / 127, in a tensor beside them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import BinaryIO, Literal

import torch
from torch import Tensor

from fededge.errors import EgressError, WireError
from fededge.flat import Layout, finite
from fededge.wire.container import Archive, pack

__all__ = ["NUMBERS", "Numbers", "decode", "encode", "payload_limit", "spans"]

MODEL = "model"
SCALES = "#scales"
"""No tensor of a network has such a name."""

Numbers = Literal["float32", "float16", "bfloat16", "int8"]
NUMBERS: dict[Numbers, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
MOST_HALF = 65504.0
MOST_BYTE = 127.0
ZSTD_MARK = b"\x28\xb5\x2f\xfd"


def encode(layout: Layout, vectors: Mapping[str, Tensor], numbers: Numbers = "float32") -> bytes:
    """The model's tensors under their own names; any further vector's under `<vector>/<name>`.

    Only vectors of the layout are taken: there is no way to put anything else into the bytes.
    """
    found: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for key, vector in vectors.items():
        if not isinstance(vector, Tensor) or vector.shape != (layout.size,):
            raise EgressError(f"'{key}' is not a vector of the layout: it must not travel")
        data = vector.detach().cpu().to(torch.float32).contiguous()
        if numbers == "int8":
            name = _name(key, SCALES)
            data, found[name] = _quantised(layout, data)
            shapes[name] = (len(layout.entries),)
        elif numbers == "float16":
            data = data.clamp(-MOST_HALF, MOST_HALF)
        data = data.to(NUMBERS[numbers])
        for entry in layout.entries:
            name = _name(key, entry.name)
            found[name], shapes[name] = data[entry.span], entry.shape
    return pack(found, shapes)


def decode(
    layout: Layout,
    source: bytes | BinaryIO,
    vectors: tuple[str, ...] = (MODEL,),
    numbers: Numbers = "float32",
) -> dict[str, Tensor]:
    """The vectors in these bytes or this file, if they are exactly the ones expected and finite."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    archive = Archive.open(file, _header_limit(layout, len(vectors)))
    expected = {_name(key, e.name): (key, e) for key in vectors for e in layout.entries}
    scales = {_name(key, SCALES): key for key in vectors if numbers == "int8"}
    names = expected.keys() | scales.keys()
    if archive.places.keys() != names:
        odd = [name[:80] for name in sorted(archive.places.keys() ^ names)[:3]]
        raise WireError(f"the tensors are not those of the layout, for instance {odd}")
    out = {key: torch.empty(layout.size) for key in vectors}
    for name, (key, entry) in expected.items():
        there = out[key][entry.span]
        there.copy_(archive.read(name, entry.shape, there.to(NUMBERS[numbers])))
    for name, key in scales.items():
        count = len(layout.entries)
        _scale(layout, out[key], archive.read(name, (count,), torch.empty(count)))
    for key, vector in out.items():
        if not finite(vector):
            raise WireError(f"'{key}' holds numbers that are not finite")
    return out


def _quantised(layout: Layout, vector: Tensor) -> tuple[Tensor, Tensor]:
    """int8 numbers, and the scale of each tensor; a scale of 0 stands for zeros."""
    most = torch.zeros(len(layout.entries))
    for index, entry in enumerate(layout.entries):
        if entry.size:
            most[index] = vector[entry.span].abs().max()
    scales = most / MOST_BYTE
    numbers = torch.zeros_like(vector)
    for entry, scale in zip(layout.entries, scales, strict=True):
        if scale > 0:
            numbers[entry.span] = (vector[entry.span] / scale).round()
    return numbers.clamp(-MOST_BYTE, MOST_BYTE).to(torch.int8), scales


def _scale(layout: Layout, vector: Tensor, scales: Tensor) -> None:
    for entry, scale in zip(layout.entries, scales, strict=True):
        vector[entry.span] *= scale


def spans(data: bytes) -> dict[str, tuple[int, int]]:
    """Where each tensor lies in bytes that `encode` made: for the ledger of what left.

    Of compressed bytes nobody can say: they count as a whole.
    """
    if data.startswith(ZSTD_MARK):
        return {"all, compressed": (0, len(data))}
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    return {
        name: (start + facts["data_offsets"][0], start + facts["data_offsets"][1])
        for name, facts in header.items()
    }


def payload_limit(layout: Layout, vectors: int = 1) -> int:
    """More bytes than this cannot be an honest payload of this layout."""
    return 4 * vectors * layout.size + _header_limit(layout, vectors)


def _header_limit(layout: Layout, vectors: int) -> int:
    names = sum(len(entry.name) for entry in layout.entries)
    return vectors * (2 * names + 200 * len(layout.entries)) + 4096


def _name(key: str, name: str) -> str:
    return name if key == MODEL else f"{key}/{name}"
