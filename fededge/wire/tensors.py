"""Flat vectors as safetensors bytes: the layout's names, one kind of number, and nothing else.

int8 has a scale for each tensor of the layout, largest magnitude / 127, in a tensor beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fededge.errors import EgressError, WireError
from fededge.flat import Layout

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
    for key, vector in vectors.items():
        if not isinstance(vector, Tensor) or vector.shape != (layout.size,):
            raise EgressError(f"'{key}' is not a vector of the layout: it must not travel")
        data = vector.detach().cpu().to(torch.float32).contiguous()
        if numbers == "int8":
            data, found[_name(key, SCALES)] = _quantised(layout, data)
        elif numbers == "float16":
            data = data.clamp(-MOST_HALF, MOST_HALF)
        data = data.to(NUMBERS[numbers])
        if any(data.data_ptr() == other.data_ptr() for other in found.values()):
            data = data.clone()  # safetensors takes no memory twice
        for entry in layout.entries:
            found[_name(key, entry.name)] = data[entry.span].view(entry.shape)
    return safetensors.torch.save(found)


def decode(
    layout: Layout,
    data: bytes,
    vectors: tuple[str, ...] = (MODEL,),
    numbers: Numbers = "float32",
) -> dict[str, Tensor]:
    """The vectors in these bytes, if they are exactly the ones expected and finite."""
    try:
        found = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise WireError(f"not safetensors bytes: {str(error)[:200]}") from None
    expected = {_name(key, e.name): (key, e) for key in vectors for e in layout.entries}
    scales = {_name(key, SCALES) for key in vectors if numbers == "int8"}
    if found.keys() != expected.keys() | scales:
        odd = [name[:80] for name in sorted(found.keys() ^ (expected.keys() | scales))[:3]]
        raise WireError(f"the tensors are not those of the layout, for instance {odd}")
    out = {key: torch.empty(layout.size) for key in vectors}
    for name, (key, entry) in expected.items():
        tensor = found.pop(name)  # one copy of a large model at a time
        _check(name, tensor, NUMBERS[numbers], entry.shape)
        out[key][entry.span] = tensor.reshape(-1).to(torch.float32)
    for key, vector in out.items():
        if numbers == "int8":
            name = _name(key, SCALES)
            _check(name, found[name], torch.float32, (len(layout.entries),))
            _scale(layout, vector, found[name])
        if not torch.isfinite(vector).all():
            raise WireError(f"'{key}' holds numbers that are not finite")
    return out


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise WireError(
            f"tensor '{name}' is {_word(tensor.dtype)} {tuple(tensor.shape)[:8]}, "
            f"the layout says {_word(dtype)} {shape}"
        )


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
    names = sum(len(entry.name) for entry in layout.entries)
    return vectors * (4 * layout.size + 2 * names + 200 * len(layout.entries)) + 4096


def _name(key: str, name: str) -> str:
    return name if key == MODEL else f"{key}/{name}"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
