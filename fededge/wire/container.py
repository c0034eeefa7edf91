"""The safetensors format, tensor by tensor, so that a model is never in memory twice for it.

Eight bytes of length, a JSON header that says what lies where, and the tensors' bytes one after the
other. The library of that name reads and writes the same, and copies a whole model up to three
times on the way. Here a tensor is its kind of number, its shape and its bytes, numpy's or torch's.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from fededge.errors import WireError

__all__ = [
    "SIZES",
    "Archive",
    "Form",
    "Plain",
    "Sink",
    "array_of",
    "opening",
    "plain",
    "raw",
    "read",
    "write",
]

SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""The kinds of numbers, by their names in the format, and the bytes of one."""

KINDS: dict[np.dtype[Any], str] = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int16): "I16",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.bool_): "BOOL",
}
METADATA = "__metadata__"
LENGTH = 8
ALIGNED = 8


Size = Annotated[int, Meta(ge=0, le=2**53)]


class Form(NamedTuple):
    """Of a tensor: its kind of number, and its shape."""

    kind: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.kind]


class Plain(NamedTuple):
    """A tensor without a library: its form and its bytes."""

    form: Form
    data: memoryview


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """What the header says of a tensor; the offsets count from the end of the header."""

    dtype: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,16}\Z")]
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]

    def holds(self, form: Form) -> bool:
        first, last = self.data_offsets
        return (self.dtype, self.shape, last - first) == (*form, form.bytes)


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes | memoryview, /) -> object: ...


def opening(forms: Mapping[str, Form]) -> tuple[bytes, list[str], int]:
    """The header of tensors of these forms, their order (wide numbers first, then by name), and
    the size of the whole.
    """
    names = sorted(forms, key=lambda name: (-SIZES[forms[name].kind], name))
    header, offset = {}, 0
    for name in names:
        end = offset + forms[name].bytes
        header[name] = msgspec.to_builtins(Place(*forms[name], (offset, end)))
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    start = len(text).to_bytes(LENGTH, "little") + text
    return start, names, len(start) + offset


def write(file: Sink, tensors: Mapping[str, Plain]) -> None:
    """Write these tensors under their names."""
    start, names, _ = opening({name: tensor.form for name, tensor in tensors.items()})
    file.write(start)
    for name in names:
        file.write(tensors[name].data)


def read(file: BinaryIO, wanted: Callable[[str], bool] = bool) -> dict[str, Plain]:
    """What `write` wrote into a file of our own, if its name is wanted; in any form."""
    archive = Archive.open(file, file.seek(0, io.SEEK_END))
    found = {}
    for name in filter(wanted, archive.places):
        form = Form(archive.places[name].dtype, archive.places[name].shape)
        if form.kind not in SIZES or not archive.places[name].holds(form):
            raise WireError(f"tensor '{name[:80]}' is not what it says: {form.kind}")
        data = raw(np.empty(form.bytes, np.uint8))
        archive.read(name, form, data)
        found[name] = Plain(form, data)
    return found


def plain(array: npt.NDArray[Any]) -> Plain:
    """An array of numpy, without its bytes being copied if they lie side by side."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return Plain(Form(KINDS[flat.dtype], array.shape), raw(flat))


def array_of(tensor: Plain) -> npt.NDArray[Any]:
    """The same bytes as an array of numpy, which has no bfloat16."""
    dtypes = {kind: dtype for dtype, kind in KINDS.items()}
    if tensor.form.kind not in dtypes:
        raise WireError(f"numpy has no numbers of the kind {tensor.form.kind}")
    flat: npt.NDArray[Any] = np.frombuffer(tensor.data, dtypes[tensor.form.kind])
    return flat.reshape(tensor.form.shape)


def raw(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of a flat array without gaps, which is not copied."""
    return array.view(np.uint8).data


@dataclass(frozen=True)
class Archive:
    """A file of tensors: where each lies in it, and where the first begins."""

    file: BinaryIO
    places: Mapping[str, Place]
    start: int

    @classmethod
    def open(cls, file: BinaryIO, most: int) -> Archive:
        """Read the header; one of more than `most` bytes is refused."""
        size = file.seek(0, io.SEEK_END)
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

    def read(self, name: str, form: Form, into: memoryview, first: int = 0) -> None:
        """Fill bytes from a tensor of this form, from its number `first` on."""
        place = self.places[name]
        if not place.holds(form):
            raise WireError(
                f"tensor '{name[:80]}' is {place.dtype} {place.shape[:8]}, "
                f"the layout says {form.kind} {form.shape}"
            )
        self.file.seek(self.start + place.data_offsets[0] + first * SIZES[form.kind])
        count = self.file.readinto(into)  # type: ignore[attr-defined]
        if count != len(into):
            raise WireError("not safetensors bytes: it ends in the middle of a tensor")


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
