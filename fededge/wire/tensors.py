"""Flat vectors as safetensors bytes: the layout's names, one kind of number, and nothing else.

int8 has a scale for each tensor of the layout, largest magnitude / 127, in a tensor beside them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from fededge.errors import EgressError, WireError
from fededge.flat import Entry, Layout, Vector, blocks, finite
from fededge.wire import container
from fededge.wire.container import Archive, Form, raw
from fededge.wire.source import Source, piece, size

__all__ = [
    "Made",
    "Numbers",
    "decode",
    "decode_part",
    "encode",
    "payload_limit",
    "size_of",
    "spans",
    "unwarned",
    "write",
]

MODEL = "model"
SCALES = "#scales"
"""No tensor of a network has such a name."""

Numbers = Literal["float32", "float16", "bfloat16", "int8"]
KINDS: dict[Numbers, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8"}
Bits = npt.NDArray[Any]
"""Numbers as they travel; numpy has no bfloat16: they are uint16."""

BITS: dict[Numbers, npt.DTypeLike] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int8": np.int8,
}
MOST_HALF = 65504.0
MOST_BYTE = 127.0
ZSTD_MARK = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, eq=False)
class Made:
    """A vector that is made part by part, as each is needed."""

    shape: tuple[int]
    part: Callable[[slice], Vector]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, span: slice) -> Vector:
        return self.part(span)


Vectors = Mapping[str, Vector | Made]
Taken = Callable[[slice, Vector, Vector], None]
"""Told of each span: what was to be written, and what a reader will find."""


# What is not finite is refused with a sentence; numpy need not warn of it before.
unwarned = np.errstate(over="ignore", invalid="ignore")


def encode(layout: Layout, vectors: Vectors, numbers: Numbers = "float32") -> bytes:
    """What `write` writes."""
    file = io.BytesIO()
    write(file, layout, vectors, numbers)
    return file.getvalue()


@unwarned
def write(
    file: container.Sink,
    layout: Layout,
    vectors: Vectors,
    numbers: Numbers = "float32",
    taken: Taken | None = None,
) -> None:
    """The model's tensors under their own names; any further vector's under `<vector>/<name>`.

    Only vectors of the layout are taken: there is no way to put anything else into the bytes.
    """
    for key, vector in vectors.items():
        plain = isinstance(vector, np.ndarray) and vector.dtype == np.float32
        if not (plain or isinstance(vector, Made)) or vector.shape != (layout.size,):
            raise EgressError(f"'{key}' is not a vector of the layout: it must not travel")
    start, names, _ = container.opening(_forms(layout, vectors, numbers))
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
            wanted = _plain(vectors[key][span])
            sent = _rounded(wanted, numbers, scale)
            file.write(raw(sent))
            if taken is not None:
                arrives = _widened(sent, numbers)
                taken(span, wanted, arrives if scale is None else arrives * scale)


def size_of(layout: Layout, keys: Iterable[str], numbers: Numbers = "float32") -> int:
    """How many bytes `write` writes."""
    return container.opening(_forms(layout, keys, numbers))[2]


@unwarned
def decode(
    layout: Layout,
    source: bytes | BinaryIO,
    vectors: tuple[str, ...] = (MODEL,),
    numbers: Numbers = "float32",
) -> dict[str, Vector]:
    """The vectors in these bytes or this file, if they are exactly the ones expected and finite.

    The file is read once, from its beginning to its end.
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


@unwarned
def decode_part(layout: Layout, file: BinaryIO, span: slice, numbers: Numbers) -> Vector:
    """These numbers of the model in this file, as `decode` would give them."""
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
    """A file whose names are those of the layout."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    archive = Archive.open(file, _header_limit(layout, len(vectors)))
    names = _forms(layout, vectors, numbers).keys()
    if archive.places.keys() != names:
        odd = [name[:80] for name in sorted(archive.places.keys() ^ names)[:3]]
        raise WireError(f"the tensors are not those of the layout, for instance {odd}")
    return archive


def _read(
    archive: Archive, name: str, entry: Entry, span: slice, there: Vector, numbers: Numbers
) -> None:
    """Fill `there` with a span of the vector, which lies in this tensor."""
    into = there if numbers == "float32" else np.empty(len(there), BITS[numbers])
    archive.read(name, Form(KINDS[numbers], entry.shape), raw(into), span.start - entry.offset)
    if into is not there:
        there[:] = _widened(into, numbers)


def _read_scales(archive: Archive, name: str, layout: Layout) -> Vector:
    scales: Vector = np.empty(len(layout.entries), np.float32)
    archive.read(name, Form("F32", scales.shape), raw(scales))
    return scales


def _forms(layout: Layout, keys: Iterable[str], numbers: Numbers) -> dict[str, container.Form]:
    forms: dict[str, container.Form] = {}
    for key in keys:
        for entry in layout.entries:
            forms[_name(key, entry.name)] = Form(KINDS[numbers], entry.shape)
        if numbers == "int8":
            forms[_name(key, SCALES)] = Form("F32", (len(layout.entries),))
    return forms


def _expected(layout: Layout, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
    """For each name of a tensor: the vector that it is of, and its place in the layout."""
    return {_name(k, e.name): (k, index) for k in keys for index, e in enumerate(layout.entries)}


def _ends(entry: Entry) -> tuple[int, int]:
    return entry.offset, entry.offset + entry.size


def _plain(part: Vector) -> Vector:
    return np.ascontiguousarray(part, np.float32)


def _rounded(part: Vector, numbers: Numbers, scale: np.float32 | None) -> Bits:
    """A part of a vector as it travels; int8 has a scale, and one of 0 stands for zeros."""
    if scale is not None:
        steps = np.rint(part / scale) if scale > 0 else np.zeros_like(part)
        part = steps.clip(-MOST_BYTE, MOST_BYTE)
    elif numbers == "float16":
        part = part.clip(-MOST_HALF, MOST_HALF)
    elif numbers == "bfloat16":
        return _upper_half(part)
    return part.astype(BITS[numbers], copy=False)


def _upper_half(part: Vector) -> Bits:
    """bfloat16 is the upper half of a float32: rounded to the nearest, of two as near the even."""
    bits = part.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(part), 0x7FC0, rounded).astype(np.uint16)


def _widened(bits: Bits, numbers: Numbers) -> Vector:
    if numbers == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32, copy=False)


def _scales(layout: Layout, vector: Vector | Made) -> Vector:
    """The scale of each tensor of the layout."""
    most: Vector = np.zeros(len(layout.entries), np.float32)
    for index, entry in enumerate(layout.entries):
        for span in blocks(*_ends(entry)):
            most[index] = np.maximum(most[index], np.abs(_plain(vector[span])).max())
    scales: Vector = most / np.float32(MOST_BYTE)
    return scales


def spans(source: Source) -> dict[str, tuple[int, int]]:
    """Where each tensor lies in bytes that `write` wrote: for the ledger of what left.

    Of compressed bytes nobody can say: they count as a whole.
    """
    head = piece(source, 0, container.LENGTH)
    if head.startswith(ZSTD_MARK):
        return {"all, compressed": (0, size(source))}
    length = int.from_bytes(head, "little")
    header = json.loads(piece(source, container.LENGTH, length))
    header.pop("__metadata__", None)
    start = container.LENGTH + length
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
