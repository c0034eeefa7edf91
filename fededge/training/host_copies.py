"""A turn's results in the host's memory: what is checked, hashed, encoded and written."""

from __future__ import annotations

from fededge._internal.lazy_torch import Tensor, torch
from fededge.flat import blocks
from fededge.method.private import Private

__all__ = ["CROSSING", "HostCopies"]

CROSSING = 4 << 20
"""Bytes that cross from the device at once: a driver stages each crossing in pinned memory."""


class HostCopies:
    """Copies of a turn's results in the host's memory; each vector crosses once."""

    def __init__(self) -> None:
        self._copies: dict[object, tuple[Tensor, Tensor]] = {}

    def tensor(self, source: Tensor) -> Tensor:
        """Return the copy of a tensor; tensors that are views of the same numbers share it."""
        place = source.data_ptr(), source.shape, source.stride(), source.dtype
        if place not in self._copies:
            # The source is kept too: a freed one's memory might be given to another.
            self._copies[place] = source, _copied(source.detach())
        return self._copies[place][1]

    def private(self, values: Private) -> Private:
        kept = {k: self.tensor(v) if isinstance(v, Tensor) else v for k, v in values.items()}
        return Private(kept)


def _copied(source: Tensor) -> Tensor:
    """Copy a tensor block by block into the memory that it is encoded from: the only copy here."""
    if source.is_cpu:
        return source.clone()
    copy = torch.empty(source.shape, dtype=source.dtype)
    to, numbers = copy.view(-1), source.contiguous().view(-1)
    for span in blocks(0, len(numbers), CROSSING // source.itemsize):
        to[span].copy_(numbers[span])
    return copy
