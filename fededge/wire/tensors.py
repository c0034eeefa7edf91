"""Flat vectors as safetensors bytes: the layout's names, one kind of number, and nothing else.

int8 has a scale for each tensor of the layout, largest magnitude / 127, in a tensor beside them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal

import torch
from torch import Tensor

from fededge.errors import EgressError, WireError
from fededge.flat import Entry, Layout, blocks, finite
from fededge.wire import container
from fededge.wire.container import Archive, raw
from fededge.wire.source import Source, piece, size

__all__ = [
    "NUMBERS",
    "Made",
    "Numbers",
    "decode",
    "decode_part",
    "encode",
    "payload_limit",
    "size_of",
    "spans",
    "write",
]

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


@dataclass(frozen=True, eq=False)
class Made:
    """A vector that is made part by part, as each is needed."""

    shape: tuple[int]
    part: Callable[[slice], Tensor]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, span: slice) -> Tensor:
        return self.part(span)


Vectors = Mapping[str, Tensor | Made]
Taken = Callable[[slice, Tensor, Tensor], None]
"""Told of each span: what was to be written, and what a reader will find."""


def encode(layout: Layout, vectors: Vectors, numbers: Numbers = "float32") -> bytes:
    """What `write` writes."""
    file = io.BytesIO()
    write(file, layout, vectors, numbers)
    return file.getvalue()


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
        if not isinstance(vector, Tensor | Made) or tuple(vector.shape) != (layout.size,):
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
                arrives = sent.to(torch.float32)
                taken(span, wanted, arrives if scale is None else arrives * scale)


def size_of(layout: Layout, keys: Iterable[str], numbers: Numbers = "float32") -> int:
    """How many bytes `write` writes."""
    return container.opening(_forms(layout, keys, numbers))[2]


def decode(
    layout: Layout,
    source: bytes | BinaryIO,
    vectors: tuple[str, ...] = (MODEL,),
    numbers: Numbers = "float32",
) -> dict[str, Tensor]:
    """The vectors in these bytes or this file, if they are exactly the ones expected and finite.

    The file is read once, from its beginning to its end.
    """
    archive = _archive(layout, source, vectors, numbers)
    expected = _expected(layout, vectors)
    out = {key: torch.empty(layout.size) for key in vectors}
    scales = {}
    for name in archive.names:
        if name in expected:
            key, index = expected[name]
            for span in blocks(*_ends(layout.entries[index])):
                _read(archive, name, layout.entries[index], span, out[key][span], numbers)
        else:
            count = len(layout.entries)
            scales[name] = archive.read(name, (count,), torch.empty(count))
    for key, vector in out.items():
        if numbers == "int8":
            for entry, scale in zip(layout.entries, scales[_name(key, SCALES)], strict=True):
                vector[entry.span] *= scale
        if not finite(vector):
            raise WireError(f"'{key}' holds numbers that are not finite")
    return out


def decode_part(layout: Layout, file: BinaryIO, span: slice, numbers: Numbers) -> Tensor:
    """These numbers of the model in this file, as `decode` would give them."""
    archive = _archive(layout, file, (MODEL,), numbers)
    out = torch.empty(span.stop - span.start)
    count = len(layout.entries)
    scales = archive.read(SCALES, (count,), torch.empty(count)) if numbers == "int8" else None
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
    archive: Archive, name: str, entry: Entry, span: slice, there: Tensor, numbers: Numbers
) -> None:
    """Fill `there` with a span of the vector, which lies in this tensor."""
    kind = NUMBERS[numbers]
    into = there if kind == there.dtype else torch.empty(len(there), dtype=kind)
    archive.read(name, entry.shape, into, span.start - entry.offset)
    if into is not there:
        there.copy_(into)


def _forms(layout: Layout, keys: Iterable[str], numbers: Numbers) -> dict[str, container.Form]:
    forms: dict[str, container.Form] = {}
    for key in keys:
        for entry in layout.entries:
            forms[_name(key, entry.name)] = NUMBERS[numbers], entry.shape
        if numbers == "int8":
            forms[_name(key, SCALES)] = torch.float32, (len(layout.entries),)
    return forms


def _expected(layout: Layout, keys: Iterable[str]) -> dict[str, tuple[str, int]]:
    """For each name of a tensor: the vector that it is of, and its place in the layout."""
    return {_name(k, e.name): (k, index) for k in keys for index, e in enumerate(layout.entries)}


def _ends(entry: Entry) -> tuple[int, int]:
    return entry.offset, entry.offset + entry.size


def _plain(part: Tensor) -> Tensor:
    return part.detach().cpu().to(torch.float32).contiguous()


def _rounded(part: Tensor, numbers: Numbers, scale: Tensor | None) -> Tensor:
    """A part of a vector as it travels; int8 has a scale, and one of 0 stands for zeros."""
    if scale is not None:
        steps = (part / scale).round() if scale > 0 else torch.zeros_like(part)
        part = steps.clamp(-MOST_BYTE, MOST_BYTE)
    elif numbers == "float16":
        part = part.clamp(-MOST_HALF, MOST_HALF)
    return part.to(NUMBERS[numbers])


def _scales(layout: Layout, vector: Tensor | Made) -> Tensor:
    """The scale of each tensor of the layout."""
    most = torch.zeros(len(layout.entries))
    for index, entry in enumerate(layout.entries):
        for span in blocks(*_ends(entry)):
            most[index] = torch.maximum(most[index], _plain(vector[span]).abs().max())
    return most / MOST_BYTE


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
