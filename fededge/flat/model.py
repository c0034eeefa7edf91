"""A module whose tensors are views of one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.errors import LayoutError
from fededge.flat.layout import Layout, owners_of, tensors_of

__all__ = ["FlatModel"]


@dataclass
class FlatModel:
    """A module whose parameters and float buffers are views of `vector`, gradients of `grad`.

    Calls that replace the module's tensors (`module.to`, `module.half`) break the binding: use
    `FlatModel.to`, and `bound` to check. With `trains=False` there is no `grad`, which saves as
    much memory as the model takes.
    """

    module: nn.Module
    trains: bool = True
    layout: Layout = field(init=False)
    vector: Tensor = field(init=False, repr=False)
    grad: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.layout = Layout.of(self.module)
        tensors = [tensor for _, tensor in tensors_of(self.module)]
        _check_data(self.layout, tensors)
        _check_memory(self.layout, tensors)
        vector = torch.empty(self.layout.size, device=_device(tensors))
        for entry, tensor in zip(self.layout.entries, tensors, strict=True):
            vector[entry.span].copy_(tensor.detach().reshape(-1))
        self.vector = vector
        self.swap(vector)
        self.grad = torch.zeros_like(vector) if self.trains else vector.new_empty(0)
        if self.trains:
            self.bind_grad()

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out

    def swap(self, vector: Tensor) -> Tensor:
        """Make the module use this vector; return the previous one.

        A contiguous float32 vector on the module's device is not copied.
        """
        fits = vector.detach().to(self.vector.device, torch.float32).contiguous()
        views = self.layout.views(fits)
        owners = owners_of(self.module)
        for entry in self.layout.entries:
            for name in (entry.name, *entry.aliases):
                owner, attribute = owners[name]
                if entry.trainable:
                    getattr(owner, attribute).data = views[entry.name]
                else:
                    owner._buffers[attribute] = views[entry.name]
        before, self.vector = self.vector, fits
        return before

    def load(self, vector: Tensor) -> None:
        """Copy these values into the vector in use."""
        self.layout.views(vector)
        self.vector.copy_(vector)

    def bind_grad(self) -> None:
        """Make every parameter's `.grad` a view of `grad`; keep the values of a foreign `.grad`.

        `torch.optim`'s `zero_grad()` sets `.grad` to None, and the next backward makes new ones.
        """
        views = self.layout.views(self.grad)
        for name, parameter in self.module.named_parameters():
            view = views[name]
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            if parameter.requires_grad:
                parameter.grad = view

    def zero_grad(self) -> None:
        self.grad.zero_()

    @property
    def trainable(self) -> Tensor:
        """A 0/1 vector: 1 for parameters that are not frozen (`requires_grad`)."""
        names = {n for n, p in self.module.named_parameters() if p.requires_grad}
        return self.layout.mask(e for e in self.layout.entries if e.name in names)

    @property
    def trained(self) -> slice | None:
        """The span of the parameters that are not frozen; None if they are not adjacent.

        They usually are, before all running statistics. A mask would need as much memory as the
        model.
        """
        learns = {n for n, p in self.module.named_parameters() if p.requires_grad}
        spans = [entry.span for entry in self.layout.entries if entry.name in learns]
        side_by_side = all(one.stop == next_.start for one, next_ in pairwise(spans))
        return slice(spans[0].start, spans[-1].stop) if spans and side_by_side else None

    @property
    def bound(self) -> bool:
        """True if the module's tensors are still views of the vector."""
        try:
            found = list(tensors_of(self.module))
        except LayoutError:
            return False
        if [names[0] for names, _ in found] != [entry.name for entry in self.layout.entries]:
            return False
        views = self.layout.views(self.vector).values()
        return all(
            tensor.data_ptr() == view.data_ptr() and tensor.shape == view.shape
            for (_, tensor), view in zip(found, views, strict=True)
        )

    def to(self, device: torch.device | str) -> FlatModel:
        """Move the module, its vector and its gradient to a device."""
        self.module.to(device)
        self.vector, self.grad = self.vector.to(device), self.grad.to(device)
        self.swap(self.vector)
        if self.trains:
            self.bind_grad()
        return self

    def clone(self) -> FlatModel:
        """Return an independent copy, with a zero gradient."""
        return FlatModel(copy.deepcopy(self.module), self.trains)

    def __deepcopy__(self, memo: dict[int, Any]) -> FlatModel:
        return self.clone()

    def sha256(self) -> str:
        return self.layout.sha256(self.vector)


def _device(tensors: Sequence[Tensor]) -> torch.device:
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise LayoutError(f"the module is on several devices ({names}): move it to one")
    return devices.pop() if devices else torch.device("cpu")


def _check_data(layout: Layout, tensors: Sequence[Tensor]) -> None:
    for entry, tensor in zip(layout.entries, tensors, strict=True):
        if tensor.is_meta:
            raise LayoutError(
                f"'{entry.name}' has no data (meta device): build the module on a real device first"
            )


def _check_memory(layout: Layout, tensors: Sequence[Tensor]) -> None:
    """Refuse two tensors that share memory: in the vector they would become separate copies."""
    seen: dict[int, str] = {}
    for entry, tensor in zip(layout.entries, tensors, strict=True):
        other = seen.setdefault(tensor.data_ptr(), entry.name) if entry.size else entry.name
        if other != entry.name:
            raise LayoutError(
                f"'{entry.name}' and '{other}' share memory but are two tensors: make them one "
                "(module.a = module.b), or give each its own"
            )
