"""Flat vectors as safetensors bytes: the layout's tensors in one dtype, and nothing else.

int8 has a scale for each tensor of the layout, largest magnitude / 127, in an extra tensor.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from fededge.errors import EgressError, WireError
from fededge.flat import Entry, Layout, Vector, blocks, finite
from fededge.wire import container
from fededge.wire.container import CODES, Archive, TensorSpec, raw, storage_dtype
from fededge.wire.source import Source, piece, size

__all__ = [
    "LazyVector",
    "Numbers",
    "decode",
    "decode_part",
    "encode",
    "payload_limit",
    "quiet",
    "size_of",
    "spans",
    "write",
]

MODEL = "model"
SCALES = "#scales"
"""Name of the tensor of scales; no tensor of a network has such a name."""

Numbers = Literal["float32", "float16", "bfloat16", "int8"]
Bits = npt.NDArray[Any]
"""Numbers in their wire dtype (`storage_dtype`)."""

MAX_FLOAT16 = 65504.0
MAX_INT8 = 127.0
ZSTD_MARK = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, eq=False)
class LazyVector:
    """A vector that is computed span by span, when each is needed."""

    shape: tuple[int]
    part: Callable[[slice], Vector]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, span: slice) -> Vector:
        return self.part(span)


Vectors = Mapping[str, Vector | LazyVector]
OnWritten = Callable[[slice, Vector, Vector], None]
"""Callback for each span written: the exact numbers, and the rounded ones that a reader gets."""


# Numbers that are not finite raise an error of our own, so numpy's warnings are switched off.
quiet = np.errstate(over="ignore", invalid="ignore")


def encode(layout: Layout, vectors: Vectors, numbers: Numbers = "float32") -> bytes:
    """The bytes that `write` writes."""
    file = io.BytesIO()
    write(file, layout, vectors, numbers)
    return file.getvalue()


@quiet
def write(
    file: container.Sink,
    layout: Layout,
    vectors: Vectors,
    numbers: Numbers = "float32",
    on_written: OnWritten | None = None,
) -> None:
    """Write the model's tensors under their names, another vector's under `<vector>/<name>`.

    Only vectors of the layout are accepted, so nothing else can get into the bytes.
    """
    for key, vector in vectors.items():
        eager = isinstance(vector, np.ndarray) and vector.dtype == np.float32
        if not (eager or isinstance(vector, LazyVector)) or vector.shape != (layout.size,):
            raise EgressError(f"'{key}' is not a vector of the layout and must not be sent")
    start, names, _ = container.header_of(_specs(layout, vectors, numbers))
    scales = {key: _scales(layout, v) for key, v in vectors.items() if numbers == "int8"}
    expected, where = _expected(layout, vectors), {_name(key, SCALES): key for key in scales}
    file.write(start)
    for name in names:
        if name in where:
            file.write(raw(scales[where[name]]))
            continue
        key, index = expected[name]
        scale = scales[key][index] if scales else None
        for span in blocks(*_ends(layout.entries[index])):
            wanted = _contiguous(vectors[key][span])
            sent = _rounded(wanted, numbers, scale)
            file.write(raw(sent))
            if on_written is not None:
                arrives = _widened(sent, numbers)
                on_written(span, wanted, arrives if scale is None else arrives * scale)


def size_of(layout: Layout, keys: Iterable[str], numbers: Numbers = "float32") -> int:
    """The number of bytes that `write` writes."""
    return container.header_of(_specs(layout, keys, numbers))[2]


@quiet
def decode(
    layout: Layout,
    source: bytes | BinaryIO,
    vectors: tuple[str, ...] = (MODEL,),
    numbers: Numbers = "float32",
) -> dict[str, Vector]:
    """Read exactly these vectors from bytes or a file; refuse other names, and NaN and infinity.

    The file is read once, from the beginning to the end.
    """
    archive = _archive(layout, source, vectors, numbers)
    expected = _expected(layout, vectors)
    out = {key: np.empty(layout.size, np.float32) for key in vectors}
    scales = {}
    for name in archive.names:
        if name in expected:
            key, index = expected[name]
            for span in blocks(*_ends(layout.entries[index])):
                _read(archive, name, layout.entries[index], span, out[key][span], numbers)
        else:
            scales[name] = _read_scales(archive, name, layout)
    for key, vector in out.items():
        if numbers == "int8":
            for entry, scale in zip(layout.entries, scales[_name(key, SCALES)], strict=True):
                vector[entry.span] *= scale
        if not finite(vector):
            raise WireError(f"'{key}' holds numbers that are not finite")
    return out


@quiet
def decode_part(layout: Layout, file: BinaryIO, span: slice, numbers: Numbers) -> Vector:
    """Read a span of the model from a file: the same numbers as `decode` gives there."""
    archive = _archive(layout, file, (MODEL,), numbers)
    out = np.empty(span.stop - span.start, np.float32)
    scales = _read_scales(archive, SCALES, layout) if numbers == "int8" else None
    for index, entry in enumerate(layout.entries):
        first, last = max(entry.offset, span.start), min(entry.span.stop, span.stop)
        if first < last:
            there = out[first - span.start : last - span.start]
            _read(archive, entry.name, entry, slice(first, last), there, numbers)
            if scales is not None:
                there *= scales[index]
    if not finite(out):
        raise WireError(f"'{MODEL}' holds numbers that are not finite")
    return out


def _archive(
    layout: Layout, source: bytes | BinaryIO, vectors: tuple[str, ...], numbers: Numbers
) -> Archive:
    """Open a file and check that its names are those of the layout."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    archive = Archive.open(file, _header_limit(layout, len(vectors)))
    names = _specs(layout, vectors, numbers).keys()
    if archive.entries.keys() != names:
        odd = [name[:80] for name in sorted(archive.entries.keys() ^ names)[:3]]
        raise WireError(f"the tensors are not those of the layout; missing or unknown: {odd}")
    return archive


def _read(
    archive: Archive, name: str, entry: Entry, span: slice, there: Vector, numbers: Numbers
) -> None:
    """Fill `there` with a span of the vector that lies within this tensor."""
    code = CODES[numbers]
    into = there if numbers == "float32" else np.empty(len(there), storage_dtype(code))
    archive.read(name, TensorSpec(code, entry.shape), raw(into), span.start - entry.offset)
    if into is not there:
        there[:] = _widened(into, numbers)


def _read_scales(archive: Archive, name: str, layout: Layout) -> Vector:
    scales: Vector = np.empty(len(layout.entries), np.float32)
    archive.read(name, TensorSpec("F32", scales.shape), raw(scales))
    return scales


def _specs(
    layout: Layout, keys: Iterable[str], numbers: Numbers
) -> dict[str, container.TensorSpec]:
    specs: dict[str, container.TensorSpec] = {}
    for key in keys:
        for entry in layout.entries:
            specs[_name(key, entry.name)] = TensorSpec(CODES[numbers], entry.shape)
        if numbers == "int8":
            specs[_name(key, SCALES)] = TensorSpec("F32", (len(layout.entries),))
    return specs


def _expected(layout: Layout, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
    """The vector that each tensor belongs to, and its index in the layout, by tensor name."""
    return {_name(k, e.name): (k, index) for k in keys for index, e in enumerate(layout.entries)}


def _ends(entry: Entry) -> tuple[int, int]:
    return entry.offset, entry.offset + entry.size


def _contiguous(part: Vector) -> Vector:
    return np.ascontiguousarray(part, np.float32)


def _rounded(part: Vector, numbers: Numbers, scale: np.float32 | None) -> Bits:
    """A part of a vector in its wire dtype; int8 has a scale, which is 0 for a zero tensor."""
    if scale is not None:
        steps = np.rint(part / scale) if scale > 0 else np.zeros_like(part)
        part = steps.clip(-MAX_INT8, MAX_INT8)
    elif numbers == "float16":
        part = part.clip(-MAX_FLOAT16, MAX_FLOAT16)
    elif numbers == "bfloat16":
        return _upper_half(part)
    return part.astype(storage_dtype(CODES[numbers]), copy=False)


def _upper_half(part: Vector) -> Bits:
    """The bits of bfloat16, the upper half of a float32, rounded to nearest, ties to even."""
    bits = part.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(part), 0x7FC0, rounded).astype(np.uint16)


def _widened(bits: Bits, numbers: Numbers) -> Vector:
    if numbers == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32, copy=False)


def _scales(layout: Layout, vector: Vector | LazyVector) -> Vector:
    """The scale of each tensor of the layout."""
    most: Vector = np.zeros(len(layout.entries), np.float32)
    for index, entry in enumerate(layout.entries):
        for span in blocks(*_ends(entry)):
            most[index] = np.maximum(most[index], np.abs(_contiguous(vector[span])).max())
    scales: Vector = most / np.float32(MAX_INT8)
    return scales


def spans(source: Source) -> dict[str, tuple[int, int]]:
    """The first and last offset of each tensor in bytes that `write` wrote, for the egress ledger.

    Compressed bytes count as one span.
    """
    head = piece(source, 0, container.LENGTH)
    if head.startswith(ZSTD_MARK):
        return {"all, compressed": (0, size(source))}
    length = int.from_bytes(head, "little")
    header = container.parse_header(piece(source, container.LENGTH, length))
    start = container.LENGTH + length
    return {
        name: (start + entry.data_offsets[0], start + entry.data_offsets[1])
        for name, entry in header.items()
    }


def payload_limit(layout: Layout, vectors: int = 1) -> int:
    """The largest number of bytes that a valid payload of this layout can have."""
    return 4 * vectors * layout.size + _header_limit(layout, vectors)


def _header_limit(layout: Layout, vectors: int) -> int:
    names = sum(len(entry.name) for entry in layout.entries)
    return vectors * (2 * names + 200 * len(layout.entries)) + 4096


def _name(key: str, name: str) -> str:
    return name if key == MODEL else f"{key}/{name}"
