"""The safetensors format, tensor by tensor, so that a model is never in memory twice for it.

Eight bytes of length, a JSON header that says what lies where, and the tensors' bytes one after the
other. The library of that name reads and writes the same, and copies a whole model up to three
times on the way.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, BinaryIO, Protocol

import msgspec
import torch
from msgspec import Meta, Struct
from torch import Tensor

from fededge.errors import WireError

__all__ = ["NAMES", "Archive", "Form", "Sink", "opening", "raw", "read", "write"]

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


Size = Annotated[int, Meta(ge=0, le=2**53)]


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """What the header says of a tensor; the offsets count from the end of the header."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]

    def holds(self, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
        first, last = self.data_offsets
        size = math.prod(shape) * dtype.itemsize
        return (self.dtype, self.shape, last - first) == (NAMES[dtype], shape, size)


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes | memoryview, /) -> object: ...


Form = tuple[torch.dtype, tuple[int, ...]]
"""Of a tensor: its kind of number, and its shape."""


def opening(forms: Mapping[str, Form]) -> tuple[bytes, list[str], int]:
    """The header of tensors of these forms, their order (wide numbers first, then by name), and
    the size of the whole.
    """
    names = sorted(forms, key=lambda name: (-forms[name][0].itemsize, name))
    header, offset = {}, 0
    for name in names:
        dtype, shape = forms[name]
        end = offset + torch.Size(shape).numel() * dtype.itemsize
        header[name] = msgspec.to_builtins(Place(NAMES[dtype], shape, (offset, end)))
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    start = len(text).to_bytes(LENGTH, "little") + text
    return start, names, len(start) + offset


def write(file: Sink, tensors: Mapping[str, Tensor]) -> None:
    """Write these tensors under their names; each is contiguous and on the CPU."""
    start, names, _ = opening({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()})
    file.write(start)
    for name in names:
        file.write(raw(tensors[name].reshape(-1)))


def read(file: BinaryIO, wanted: Callable[[str], bool] = bool) -> dict[str, Tensor]:
    """What `write` wrote into a file of our own, if its name is wanted; in any form."""
    archive = Archive.open(file, os.fstat(file.fileno()).st_size)
    found = {}
    for name in filter(wanted, archive.places):
        place = archive.places[name]
        dtype = next((kind for kind, text in NAMES.items() if text == place.dtype), None)
        if dtype is None or not place.holds(dtype, place.shape):
            raise WireError(f"tensor '{name[:80]}' is not what it says: {place.dtype[:20]}")
        flat = torch.empty(math.prod(place.shape), dtype=dtype)
        found[name] = archive.read(name, place.shape, flat).view(place.shape)
    return found


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a flat contiguous tensor, without copying."""
    flat = tensor.as_strided((tensor.numel(),), (1,))  # a single number may have any stride
    return flat.view(torch.uint8).numpy().data


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

    @property
    def names(self) -> list[str]:
        """In the order of their bytes: what is read so is read from one end to the other."""
        return sorted(self.places, key=lambda name: self.places[name].data_offsets)

    def read(self, name: str, shape: tuple[int, ...], into: Tensor, first: int = 0) -> Tensor:
        """Fill `into` from a tensor of this shape and its kind, from the number `first` on."""
        place = self.places[name]
        if not place.holds(into.dtype, shape):
            raise WireError(
                f"tensor '{name}' is {place.dtype[:20]} {place.shape[:8]}, "
                f"the layout says {NAMES[into.dtype]} {shape}"
            )
        self.file.seek(self.start + place.data_offsets[0] + first * into.element_size())
        count = self.file.readinto(raw(into))  # type: ignore[attr-defined]
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
