"""Shared memory of worker processes: tensors lie in it, and messages say where.

The memory has no name. The kernel frees it with the last process that holds it, even after
`kill -9`, and the size of /dev/shm does not limit it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fededge.errors import FedEdgeError
from fededge.methods import Private

__all__ = ["EMPTY", "Packed", "Segment", "Slot", "pack", "tensor_at", "unpack"]

ALIGNMENT = 64
"""Tensors begin where torch's allocator would let them begin: kernels give the same bits."""


@dataclass(frozen=True)
class Slot:
    """A span of a segment that one process writes at a time."""

    start: int
    size: int


EMPTY = Slot(0, 0)


class Segment:
    """Anonymous shared memory. The process that made it reserves slots; workers inherit it."""

    def __init__(self) -> None:
        self.file = _anonymous_file()
        self.end = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def __getstate__(self) -> Any:
        return DupFd(self.file)  # works only while a process is spawned

    def __setstate__(self, duplicate: Any) -> None:
        self.file, self.end = duplicate.detach(), 0
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def __del__(self) -> None:
        os.close(self.file)

    def reserve(self, slot: Slot, size: int) -> Slot:
        """Return the slot if it has this size, or else a new one, at least twice as large.

        Doubling keeps the abandoned slots smaller than those in use.
        """
        if size <= slot.size:
            return slot
        size = -(-max(size, 2 * slot.size) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            os.posix_fallocate(self.file, self.end, size)
        except OSError as error:
            raise FedEdgeError(
                f"the worker processes cannot share {size / 1e6:.0f} MB more of memory "
                f"({error.strerror}); try fewer --workers"
            ) from None
        made = Slot(self.end, size)
        self.end += size
        return made

    def span(self, slot: Slot) -> Tensor:
        """Return a slot's bytes, without a copy."""
        end = slot.start + slot.size
        if len(self._bytes) < end:  # it has grown; views of the old map stay valid
            mapped = mmap.mmap(self.file, os.fstat(self.file).st_size)
            self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)
        return self._bytes[slot.start : end]


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fededge-simulation")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Place(NamedTuple):
    """A tensor's place in a span of bytes: its start there, its shape and its dtype's name."""

    start: int
    shape: tuple[int, ...]
    dtype: str


def tensor_at(place: Place, span: Tensor) -> Tensor:
    """Return the tensor at this place, a view."""
    dtype: torch.dtype = getattr(torch, place.dtype)
    end = place.start + dtype.itemsize * math.prod(place.shape)
    return span[place.start : end].view(dtype).view(place.shape)


@dataclass(frozen=True)
class Packed:
    """An object with places instead of tensors, which `write` puts into `size` bytes."""

    data: Any
    tensors: list[tuple[Place, Tensor]]
    size: int

    def write(self, span: Tensor) -> None:
        for place, tensor in self.tensors:
            tensor_at(place, span).copy_(tensor.detach())


@dataclass(frozen=True)
class Parts:
    """An object as its class and the arguments that make it again."""

    kind: type
    arguments: dict[str, Any]


def pack(value: Any) -> Packed:
    """Replace all tensors in an object; one that it names twice is packed once."""
    tensors = _Tensors()
    return Packed(tensors.replaced(value), list(tensors.found.values()), tensors.end)


class _Tensors:
    def __init__(self) -> None:
        self.found: dict[int, tuple[Place, Tensor]] = {}
        self.end = 0

    def replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._place(value)
        if isinstance(value, Private):  # it cannot be sent itself
            return Parts(Private, {"values": self.replaced(dict(value))})
        if isinstance(value, dict):
            return {name: self.replaced(part) for name, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self.replaced, value))
        if is_dataclass(value) and not isinstance(value, type):
            named = {field.name: getattr(value, field.name) for field in fields(value)}
            return Parts(type(value), self.replaced(named))
        return value

    def _place(self, tensor: Tensor) -> Place:
        if id(tensor) not in self.found:
            name = str(tensor.dtype).removeprefix("torch.")
            self.found[id(tensor)] = Place(self.end, tuple(tensor.shape), name), tensor
            self.end += (tensor.nbytes // ALIGNMENT + 1) * ALIGNMENT
        return self.found[id(tensor)][0]


def unpack(data: Any, span: Tensor, *, copy: bool) -> Any:
    """Return the packed object; its tensors are views of the span unless they are copied."""
    found: dict[int, Tensor] = {}

    def restored(value: Any) -> Any:
        if isinstance(value, Place):
            if value.start not in found:
                view = tensor_at(value, span)
                found[value.start] = view.clone() if copy else view
            return found[value.start]
        if isinstance(value, Parts):
            return value.kind(**restored(value.arguments))
        if isinstance(value, dict):
            return {name: restored(part) for name, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(restored, value))
        return value

    return restored(data)
