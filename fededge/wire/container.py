"""The safetensors format, tensor by tensor, so that a model is never in memory twice for it.

Eight bytes of length, a JSON header that says what lies where, and the tensors' bytes one after the
other. The library of that name reads and writes the same, and copies a whole model up to three
times on the way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from fededge.errors import WireError

__all__ = ["NAMES", "Archive", "pack"]

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
METADATA = "__metadata__"
LENGTH = 8
ALIGNED = 8


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """What the header says of a tensor; the offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    def holds(self, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
        first, last = self.data_offsets
        size = torch.Size(shape).numel() * dtype.itemsize
        return (self.dtype, self.shape, last - first) == (NAMES[dtype], shape, size)


def pack(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The bytes of these flat tensors under these shapes: wide numbers first, then by name."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, offset = {}, 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        place = Place(NAMES[tensor.dtype], shapes[name], (offset, end))
        header[name], offset = msgspec.to_builtins(place), end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    parts = (tensors[name].view(torch.uint8).numpy().data for name in names)
    return b"".join([len(text).to_bytes(LENGTH, "little"), text, *parts])


@dataclass(frozen=True)
class Archive:
    """A file of tensors: where each lies in it, and where the first begins."""

    file: BinaryIO
    places: Mapping[str, Place]
    start: int

    @classmethod
    def open(cls, file: BinaryIO, most: int) -> Archive:
        """Read the header; one of more than `most` bytes is refused."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        length = int.from_bytes(file.read(LENGTH), "little")
        if size < LENGTH or length > min(most, size - LENGTH):
            raise WireError(f"not safetensors bytes: no header of at most {most} bytes")
        places = _places(file.read(length))
        if not _side_by_side(places, size - LENGTH - length):
            raise WireError("not safetensors bytes: the tensors do not lie side by side")
        return cls(file, places, LENGTH + length)

    def read(self, name: str, shape: tuple[int, ...], into: Tensor) -> Tensor:
        """Fill `into` with a tensor, if that is of this shape, and of its kind and count."""
        place = self.places[name]
        if not place.holds(into.dtype, shape):
            raise WireError(
                f"tensor '{name}' is {place.dtype[:20]} {place.shape[:8]}, "
                f"the layout says {NAMES[into.dtype]} {shape}"
            )
        self.file.seek(self.start + place.data_offsets[0])
        count = self.file.readinto(into.view(torch.uint8).numpy().data)  # type: ignore[attr-defined]
        if count != into.numel() * into.element_size():
            raise WireError("not safetensors bytes: it ends in the middle of a tensor")
        return into


def _places(text: bytes) -> dict[str, Place]:
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = raw.pop(METADATA, None)
        if metadata is not None:
            msgspec.json.decode(metadata, type=dict[str, str])
        return {name: msgspec.json.decode(place, type=Place) for name, place in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not safetensors bytes: {str(error)[:200]}") from None


def _side_by_side(places: Mapping[str, Place], size: int) -> bool:
    """Whether they fill all the bytes without a gap, and none lies over another."""
    end = 0
    for first, last in sorted(place.data_offsets for place in places.values()):
        if first != end or last < first:
            return False
        end = last
    return end == size
