"""The layout of a flat vector: the offset of each tensor of a module."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import LayoutError
from fededge.flat.numbers import Vector, as_numpy

__all__ = ["Entry", "Layout", "owners_of", "tensors_of"]


class Entry(NamedTuple):
    """One tensor of the module: its name, place in the vector, and other names."""

    name: str
    shape: tuple[int, ...]
    offset: int
    trainable: bool
    aliases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)

    def inside(self, part: str) -> bool:
        """Return True if the tensor, or a submodule around it, has this name."""
        return any(f"{name}.".startswith(f"{part}.") for name in (self.name, *self.aliases))


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of a flat model. Two layouts that differ in hash never mix."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module: its parameters, then its persistent float buffers.

        The module may be on the meta device: a layout needs no values.
        """
        entries: list[Entry] = []
        offset = 0
        for (name, *aliases), tensor in tensors_of(module):
            trainable = isinstance(tensor, nn.Parameter)
            entry = Entry(name, tuple(tensor.shape), offset, trainable, tuple(aliases))
            entries.append(entry)
            offset += entry.size
        return cls(tuple(entries))

    @property
    def size(self) -> int:
        """The number of floats in the vector."""
        return self.entries[-1].span.stop if self.entries else 0

    @cached_property
    def hash(self) -> str:
        """SHA-256 over every name, shape, offset and role."""
        text = json.dumps([list(entry) for entry in self.entries], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def trainable(self) -> Tensor:
        """A 0/1 vector: 1 for parameters, 0 for buffers (running statistics)."""
        return self.mask(entry for entry in self.entries if entry.trainable)

    def inside(self, *parts: str) -> list[Entry]:
        """Return the tensors of these submodules, or of these names."""
        for part in parts:
            if not any(entry.inside(part) for entry in self.entries):
                known = sorted({entry.name.partition(".")[0] for entry in self.entries})
                raise LayoutError(f"this network has no part '{part}' (it has {', '.join(known)})")
        return [entry for entry in self.entries if any(map(entry.inside, parts))]

    def mask(self, entries: Iterable[Entry]) -> Tensor:
        """Return a 0/1 vector: 1 for these tensors."""
        mask = torch.zeros(self.size)
        for entry in entries:
            mask[entry.span] = 1.0
        return mask

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of a vector, without copying."""
        if vector.shape != (self.size,):
            raise LayoutError(
                f"the vector must have {self.size} numbers, got shape {tuple(vector.shape)}"
            )
        return {e.name: vector[e.span].view(e.shape) for e in self.entries}

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Make a vector of these named tensors; they must be exactly those of the layout."""
        names = {entry.name for entry in self.entries}
        if names != tensors.keys():
            missing, extra = sorted(names - tensors.keys()), sorted(tensors.keys() - names)
            raise LayoutError(f"tensors do not fit the layout: missing {missing}, extra {extra}")
        out = torch.empty(self.size)
        for entry in self.entries:
            tensor = tensors[entry.name]
            if tuple(tensor.shape) != entry.shape or tensor.dtype != torch.float32:
                raise LayoutError(
                    f"tensor '{entry.name}' must be torch.float32 {entry.shape}, "
                    f"got {tensor.dtype} {tuple(tensor.shape)}"
                )
            out[entry.span].copy_(tensor.detach().reshape(-1))
        return out

    def sha256(self, vector: Tensor | Vector) -> str:
        """Return a model's content address: SHA-256 of the layout's hash and the vector's bytes."""
        single = str(vector.dtype) in ("float32", "torch.float32")
        if tuple(vector.shape) != (self.size,) or not single:
            raise LayoutError(
                f"the vector must have {self.size} float32 numbers, "
                f"got {vector.dtype} {tuple(vector.shape)}"
            )
        return self.sha256_of([vector])

    def sha256_of(self, parts: Iterable[Tensor | Vector]) -> str:
        """Return the content address of a model that comes in parts, in order."""
        digest = hashlib.sha256(bytes.fromhex(self.hash))
        for part in parts:
            digest.update(np.ascontiguousarray(as_numpy(part), "<f4").data)
        return digest.hexdigest()


def tensors_of(module: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """Yield parameters and persistent float buffers, each once, with all its names."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    for name, (owner, attribute) in owners_of(module).items():
        tensor = getattr(owner, attribute)
        if tensor is not None and _belongs(owner, attribute, name, tensor):
            found.setdefault(id(tensor), ([], tensor))[0].append(name)
    # Parameters first: training changes one span at the start of the vector.
    yield from sorted(found.values(), key=lambda pair: not isinstance(pair[1], nn.Parameter))


def owners_of(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the submodule and attribute of every parameter and buffer, by name."""
    found: dict[str, tuple[nn.Module, str]] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for attribute in (*owner._parameters, *owner._buffers):
            found[f"{prefix}.{attribute}" if prefix else attribute] = (owner, attribute)
    return found


def _belongs(owner: nn.Module, attribute: str, name: str, tensor: Tensor) -> bool:
    """Return True if the vector holds this tensor; refuse one that it should hold but cannot."""
    if attribute in owner._buffers:
        if attribute in owner._non_persistent_buffers_set:
            return False
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return False  # num_batches_tracked and other counters
    if nn.parameter.is_lazy(tensor):
        raise LayoutError(f"'{name}' has no shape yet: run one batch through the module first")
    if tensor.dtype != torch.float32:
        raise LayoutError(
            f"'{name}' is {tensor.dtype}: a flat model is float32, call module.float() first "
            "(reduced precision belongs to autocast and to the wire's encodings)"
        )
    if tensor.layout != torch.strided:
        raise LayoutError(f"'{name}' is {tensor.layout}: only dense tensors fit a flat model")
    return True
