"""Where each tensor of a module lies in its flat vector, and what a flat vector cannot hold."""

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
    """One tensor of the module: where it lies in the vector, and which other names it has."""

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
        """Whether the tensor has this name, or lies in the submodule of this name."""
        return any(f"{name}.".startswith(f"{part}.") for name in (self.name, *self.aliases))


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of a flat model. Two layouts that differ in hash never mix."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module: its parameters, then its persistent float buffers, in order.

        The module may be on the meta device: a layout takes no values.
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
        """How many floats the vector holds."""
        return self.entries[-1].span.stop if self.entries else 0

    @cached_property
    def hash(self) -> str:
        """SHA-256 over every name, shape, offset and role."""
        text = json.dumps([list(entry) for entry in self.entries], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def trainable(self) -> Tensor:
        """A 0/1 vector: 1 where a parameter lies, 0 where a buffer (running statistics) lies."""
        return self.mask(entry for entry in self.entries if entry.trainable)

    def inside(self, *parts: str) -> list[Entry]:
        """The tensors of these submodules, or of these names."""
        for part in parts:
            if not any(entry.inside(part) for entry in self.entries):
                known = sorted({entry.name.partition(".")[0] for entry in self.entries})
                raise LayoutError(f"this network has no part '{part}' (it has {', '.join(known)})")
        return [entry for entry in self.entries if any(map(entry.inside, parts))]

    def mask(self, entries: Iterable[Entry]) -> Tensor:
        """A 0/1 vector: 1 where these tensors lie."""
        mask = torch.zeros(self.size)
        for entry in entries:
            mask[entry.span] = 1.0
        return mask

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors of a vector, without copying."""
        if vector.shape != (self.size,):
            raise LayoutError(
                f"this layout has {self.size} numbers, the vector has shape {tuple(vector.shape)}"
            )
        return {e.name: vector[e.span].view(e.shape) for e in self.entries}

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector made of these named tensors; they must be exactly those of the layout."""
        names = {entry.name for entry in self.entries}
        if names != tensors.keys():
            missing, extra = sorted(names - tensors.keys()), sorted(tensors.keys() - names)
            raise LayoutError(f"tensors do not fit the layout: missing {missing}, extra {extra}")
        out = torch.empty(self.size)
        for entry in self.entries:
            tensor = tensors[entry.name]
            if tuple(tensor.shape) != entry.shape or tensor.dtype != torch.float32:
                raise LayoutError(
                    f"tensor '{entry.name}' is {tensor.dtype} {tuple(tensor.shape)}, "
                    f"the layout says torch.float32 {entry.shape}"
                )
            out[entry.span].copy_(tensor.detach().reshape(-1))
        return out

    def sha256(self, vector: Tensor | Vector) -> str:
        """The address of a model: SHA-256 over the layout's hash and the vector's bytes."""
        single = str(vector.dtype) in ("float32", "torch.float32")
        if tuple(vector.shape) != (self.size,) or not single:
            raise LayoutError(
                f"this layout has {self.size} float32 numbers, "
                f"the vector is {vector.dtype} {tuple(vector.shape)}"
            )
        return self.sha256_of([vector])

    def sha256_of(self, parts: Iterable[Tensor | Vector]) -> str:
        """The address of the model that these are the parts of, in their order."""
        digest = hashlib.sha256(bytes.fromhex(self.hash))
        for part in parts:
            digest.update(np.ascontiguousarray(as_numpy(part), "<f4").data)
        return digest.hexdigest()


def tensors_of(module: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """Parameters and persistent float buffers, each once, with all the names it goes by."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    for name, (owner, attribute) in owners_of(module).items():
        tensor = getattr(owner, attribute)
        if tensor is not None and _belongs(owner, attribute, name, tensor):
            found.setdefault(id(tensor), ([], tensor))[0].append(name)
    # Parameters first: a vector's head is what training changes.
    yield from sorted(found.values(), key=lambda pair: not isinstance(pair[1], nn.Parameter))


def owners_of(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """For every parameter and buffer name: the submodule that holds it, and its attribute."""
    found: dict[str, tuple[nn.Module, str]] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for attribute in (*owner._parameters, *owner._buffers):
            found[f"{prefix}.{attribute}" if prefix else attribute] = (owner, attribute)
    return found


def _belongs(owner: nn.Module, attribute: str, name: str, tensor: Tensor) -> bool:
    """Whether the vector holds this tensor; one that it should hold but cannot is refused."""
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
