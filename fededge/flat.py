"""A model as one flat vector: the parameters and float buffers of a module in one float32 buffer.

Aggregation, hashing, corrections of the gradient and the wire format are then one pass over one
buffer. The module does not notice: its parameters keep their identity and become views.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from fededge.errors import LayoutError, StoreError
from fededge.files import replace_file

__all__ = ["Entry", "FlatModel", "Layout"]


class Entry(NamedTuple):
    """One tensor of the module: where it lies in the vector, and which other names it has."""

    name: str
    shape: tuple[int, ...]
    offset: int
    trainable: bool
    aliases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of a flat model. Two layouts that differ in hash never mix."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module: float parameters and persistent float buffers, in its order."""
        entries: list[Entry] = []
        offset = 0
        for (name, *aliases), tensor in _float_tensors(module):
            _check(name, tensor)
            trainable = isinstance(tensor, nn.Parameter)
            entry = Entry(name, tuple(tensor.shape), offset, trainable, tuple(aliases))
            entries.append(entry)
            offset += entry.size
        return cls(tuple(entries))

    @property
    def size(self) -> int:
        """How many floats the vector holds."""
        last = self.entries[-1] if self.entries else None
        return last.offset + last.size if last else 0

    @cached_property
    def hash(self) -> str:
        """SHA-256 over every name, shape, offset and role."""
        text = json.dumps([list(entry) for entry in self.entries], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def trainable(self) -> Tensor:
        """A 0/1 vector: 1 where a parameter lies, 0 where a buffer (running statistics) lies."""
        mask = torch.zeros(self.size)
        for entry in self.entries:
            if entry.trainable:
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
            out[entry.span].copy_(tensor.reshape(-1))
        return out

    def sha256(self, vector: Tensor) -> str:
        """The address of a model: SHA-256 over the layout's hash and the vector's bytes."""
        if vector.shape != (self.size,) or vector.dtype != torch.float32:
            raise LayoutError(
                f"this layout has {self.size} float32 numbers, "
                f"the vector is {vector.dtype} {tuple(vector.shape)}"
            )
        digest = hashlib.sha256(bytes.fromhex(self.hash))
        data = vector.detach().cpu().contiguous().numpy().astype("<f4", copy=False)
        digest.update(data.data)
        return digest.hexdigest()

    def difference(self, other: Layout) -> str:
        """The first thing in which two layouts differ, in words."""
        for mine, theirs in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                return f"'{mine.name}' {mine.shape} against '{theirs.name}' {theirs.shape}"
        return f"{len(self.entries)} tensors against {len(other.entries)}"


@dataclass
class FlatModel:
    """A module whose parameters and float buffers are views of `vector`, gradients of `grad`.

    Anything that moves the module's tensors behind our back (`module.to`, `module.half`) breaks
    the binding: use `FlatModel.to`, and `bound` to check.
    """

    module: nn.Module
    layout: Layout = field(init=False)
    vector: Tensor = field(init=False, repr=False)
    grad: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.layout = Layout.of(self.module)
        tensors = [tensor for _, tensor in _float_tensors(self.module)]
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise LayoutError(f"the module lies on several devices ({names}): move it to one")
        device = devices.pop() if devices else torch.device("cpu")
        vector = torch.empty(self.layout.size, device=device)
        for entry, tensor in zip(self.layout.entries, tensors, strict=True):
            vector[entry.span].copy_(tensor.detach().reshape(-1))
        self.swap(vector)
        self.grad = torch.zeros_like(vector)
        self.bind_grad()

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out

    def swap(self, vector: Tensor) -> Tensor:
        """Make the module use this vector, and return the one it used before.

        Nothing is copied when the vector is contiguous float32 on the module's device.
        """
        before = getattr(self, "vector", vector)
        fits = vector.detach().to(before.device, torch.float32).contiguous()
        views = self.layout.views(fits)
        owners = _owners(self.module)
        for entry in self.layout.entries:
            if entry.trainable:
                _parameter(owners, entry.name).data = views[entry.name]
                continue
            for name in (entry.name, *entry.aliases):
                owner, attribute = owners[name]
                owner._buffers[attribute] = views[entry.name]
        self.vector = fits
        return before

    def load(self, vector: Tensor) -> None:
        """Copy these values into the vector in use."""
        if vector.shape != self.vector.shape:
            self.layout.views(vector)
        self.vector.copy_(vector)

    def bind_grad(self) -> None:
        """Make every parameter's `.grad` a view of `grad`, keeping what a foreign `.grad` holds.

        `torch.optim`'s `zero_grad()` sets `.grad` to None, and the next backward makes new ones.
        """
        owners = _owners(self.module)
        for name, view in self.layout.views(self.grad).items():
            owner, attribute = owners[name]
            parameter = getattr(owner, attribute)
            if not isinstance(parameter, nn.Parameter) or not parameter.requires_grad:
                continue
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    def zero_grad(self) -> None:
        self.grad.zero_()

    @property
    def bound(self) -> bool:
        """Whether the module's tensors still are the vector's views."""
        start = self.vector.data_ptr()
        return all(
            tensor.data_ptr() == start + 4 * entry.offset and tensor.device == self.vector.device
            for entry, (_, tensor) in zip(
                self.layout.entries, _float_tensors(self.module), strict=True
            )
            if entry.size
        )

    def to(self, device: torch.device | str) -> FlatModel:
        """Move the module, its vector and its gradient to a device."""
        self.module.to(device)
        vector, self.grad = self.vector.to(device), self.grad.to(device)
        self.vector = vector
        self.swap(vector)
        self.bind_grad()
        return self

    def clone(self) -> FlatModel:
        """An independent copy: module, vector and gradient."""
        return FlatModel(copy.deepcopy(self.module))

    def sha256(self) -> str:
        return self.layout.sha256(self.vector)

    def save(self, path: Path) -> None:
        """Write the named tensors as safetensors, atomically."""
        tensors = {n: t.cpu().contiguous() for n, t in self.layout.views(self.vector).items()}
        data = safetensors.torch.save(tensors, {"layout": self.layout.hash})
        replace_file(path, data)

    def restore(self, path: Path) -> None:
        """Read what `save` wrote; a file of another layout is refused."""
        try:
            tensors = safetensors.torch.load_file(path)
        except FileNotFoundError:
            raise StoreError(f"{path}: there is no such model file") from None
        except (OSError, safetensors.SafetensorError) as error:
            raise StoreError(f"{path}: not a readable safetensors file ({error})") from None
        try:
            self.load(self.layout.vector(tensors))
        except LayoutError as error:
            raise LayoutError(f"{path}: {error}") from None


def _float_tensors(module: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """Parameters and persistent float buffers, each once, with all the names it goes by."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    persistent = module.state_dict(keep_vars=True).keys()
    everything = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in everything:
        if name in persistent and tensor.is_floating_point():
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
    for key, tensor in tensors.items():
        yield names[key], tensor


def _owners(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """For every parameter and buffer name: the submodule that holds it, and its attribute."""
    found: dict[str, tuple[nn.Module, str]] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for attribute in (*owner._parameters, *owner._buffers):
            found[f"{prefix}.{attribute}" if prefix else attribute] = (owner, attribute)
    return found


def _parameter(owners: Mapping[str, tuple[nn.Module, str]], name: str) -> nn.Parameter:
    owner, attribute = owners[name]
    parameter = owner._parameters[attribute]
    assert parameter is not None
    return parameter


def _check(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise LayoutError(f"'{name}' has no data (meta device): build the module for real first")
    if tensor.dtype != torch.float32:
        raise LayoutError(
            f"'{name}' is {tensor.dtype}: a flat model is float32, call module.float() first "
            "(reduced precision belongs to autocast and to the wire's encodings)"
        )
    if tensor.layout != torch.strided:
        raise LayoutError(f"'{name}' is {tensor.layout}: only dense tensors fit a flat model")
