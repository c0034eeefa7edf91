"""The safetensors format, read and written tensor by tensor to keep peak memory low.

A file is eight bytes of length, a JSON header with the offsets, then the tensors' bytes. The
safetensors library uses the same format, but copies a whole model up to three times. Here a tensor
is a dtype, a shape and its bytes, whether they come from numpy or from torch.
"""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from fededge.errors import WireError

__all__ = [
    "CODES",
    "DTYPES",
    "Archive",
    "RawTensor",
    "Sink",
    "TensorSpec",
    "from_array",
    "header_of",
    "parse_header",
    "raw",
    "read",
    "storage_dtype",
    "to_array",
    "write",
]

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""The format's dtype codes, with their names in numpy and torch (numpy lacks bfloat16)."""

CODES = {name: code for code, name in DTYPES.items()}
METADATA = "__metadata__"
LENGTH = 8
ALIGNED = 8


Size = Annotated[int, Meta(ge=0, le=2**53)]


def storage_dtype(code: str) -> np.dtype[Any]:
    """The numpy dtype that holds such numbers; for BF16 it is uint16, their bits."""
    return np.dtype("uint16" if code == "BF16" else DTYPES[code])


SIZES = {code: storage_dtype(code).itemsize for code in DTYPES}
_NUMPY_CODES = {storage_dtype(code): code for code in DTYPES if code != "BF16"}


class TensorSpec(NamedTuple):
    """A tensor's dtype (a code of the format) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.dtype]


class RawTensor(NamedTuple):
    """A tensor's spec and bytes, independent of numpy and torch."""

    spec: TensorSpec
    data: memoryview


class HeaderEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor's entry in the header; the offsets count from the end of the header."""

    dtype: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,16}\Z")]
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]

    def matches(self, spec: TensorSpec) -> bool:
        first, last = self.data_offsets
        return (self.dtype, self.shape, last - first) == (*spec, spec.bytes)


class Sink(Protocol):
    """A destination for bytes: a file, a compressor, a digest."""

    def write(self, data: bytes | memoryview, /) -> object: ...


def header_of(
    specs: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[str], int]:
    """The header for these specs, the order of the tensors, and the size of the whole file.

    Wide numbers come first, so that all are aligned; within a width the order is by name.
    """
    names = sorted(specs, key=lambda name: (-SIZES[specs[name].dtype], name))
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name in names:
        end = offset + specs[name].bytes
        header[name] = msgspec.to_builtins(HeaderEntry(*specs[name], (offset, end)))
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    start = len(text).to_bytes(LENGTH, "little") + text
    return start, names, len(start) + offset


def write(
    file: Sink, tensors: Mapping[str, RawTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write these tensors under their names, and texts about them if there are any."""
    specs = {name: tensor.spec for name, tensor in tensors.items()}
    start, names, _ = header_of(specs, metadata)
    file.write(start)
    for name in names:
        file.write(tensors[name].data)


def read(file: BinaryIO, wanted: Callable[[str], bool] = bool) -> dict[str, RawTensor]:
    """Read the wanted tensors from a file that `write` wrote, whatever their dtypes and shapes."""
    archive = Archive.open(file, file.seek(0, io.SEEK_END))
    found = {}
    for name in filter(wanted, archive.entries):
        spec = TensorSpec(archive.entries[name].dtype, archive.entries[name].shape)
        if spec.dtype not in SIZES or not archive.entries[name].matches(spec):
            raise WireError(
                f"tensor '{name[:80]}': unknown dtype, or wrong length for it ({spec.dtype})"
            )
        data = raw(np.empty(spec.bytes, np.uint8))
        archive.read(name, spec, data)
        found[name] = RawTensor(spec, data)
    return found


def from_array(array: npt.NDArray[Any]) -> RawTensor:
    """A numpy array as a tensor; its bytes are copied only if they are not contiguous."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return RawTensor(TensorSpec(_NUMPY_CODES[flat.dtype], array.shape), raw(flat))


def to_array(tensor: RawTensor) -> npt.NDArray[Any]:
    """The tensor as a numpy array over the same bytes; numpy lacks bfloat16."""
    if tensor.spec.dtype == "BF16":
        raise WireError("numpy has no dtype BF16")
    flat: npt.NDArray[Any] = np.frombuffer(tensor.data, storage_dtype(tensor.spec.dtype))
    return flat.reshape(tensor.spec.shape)


def raw(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of a flat contiguous array, not copied."""
    return array.view(np.uint8).data


@dataclass(frozen=True)
class Archive:
    """A safetensors file that is open for reading, and its header; the data begins at `start`."""

    file: BinaryIO
    entries: Mapping[str, HeaderEntry]
    start: int
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, file: BinaryIO, most: int) -> Archive:
        """Read the header; refuse one of more than `most` bytes."""
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        length = int.from_bytes(file.read(LENGTH), "little")
        if size < LENGTH or length > min(most, size - LENGTH):
            raise WireError(f"not safetensors bytes: no header of at most {most} bytes")
        entries, metadata = _parsed(file.read(length))
        if not _contiguous(entries, size - LENGTH - length):
            raise WireError("not safetensors bytes: the tensors overlap or leave a gap")
        return cls(file, entries, LENGTH + length, metadata)

    @property
    def names(self) -> list[str]:
        """The tensors' names in file order, for reading from the beginning to the end."""
        return sorted(self.entries, key=lambda name: self.entries[name].data_offsets)

    def read(self, name: str, spec: TensorSpec, into: memoryview, first: int = 0) -> None:
        """Fill `into` from a tensor of this spec, starting at its element `first`."""
        entry = self.entries[name]
        if not entry.matches(spec):
            raise WireError(
                f"tensor '{name[:80]}' is {entry.dtype} {entry.shape[:8]}, "
                f"the layout says {spec.dtype} {spec.shape}"
            )
        self.file.seek(self.start + entry.data_offsets[0] + first * SIZES[spec.dtype])
        count = self.file.readinto(into)  # type: ignore[attr-defined]
        if count != len(into):
            raise WireError("not safetensors bytes: the file ends in the middle of a tensor")


def parse_header(text: bytes) -> Mapping[str, HeaderEntry]:
    """Read the JSON header: the entries of the tensors, by name."""
    return _parsed(text)[0]


@functools.lru_cache(maxsize=4)
def _parsed(text: bytes) -> tuple[Mapping[str, HeaderEntry], Mapping[str, str]]:
    """The entries of the tensors, by name, and the texts about them.

    The updates of a federation have one header, which is parsed once.
    """
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop(METADATA, b"{}"), type=dict[str, str])
        entries = {n: msgspec.json.decode(entry, type=HeaderEntry) for n, entry in raw.items()}
        return entries, metadata
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not safetensors bytes: {str(error)[:200]}") from None


def _contiguous(entries: Mapping[str, HeaderEntry], size: int) -> bool:
    """Return True if the tensors fill all `size` bytes, without gaps or overlaps."""
    end = 0
    for first, last in sorted(entry.data_offsets for entry in entries.values()):
        if first != end or last < first:
            return False
        end = last
    return end == size
