"""A device's examples, and batches of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from fededge._internal.lazy_torch import Tensor, torch

__all__ = ["Batch", "Examples"]


@dataclass(frozen=True, eq=False)
class Examples:
    """A device's own data: raw inputs and labels, for training and held out (`held_…`).

    `skipped` counts the files that cannot be read and were left out.
    """

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    classes: int
    skipped: int = 0

    @cached_property
    def counts(self) -> Tensor:
        """The number of training examples of each class."""
        return torch.bincount(self.y, minlength=self.classes)

    def to(self, device: torch.device, inputs: bool) -> Examples:
        """Return the examples on a device; their inputs too, or where they are."""
        x, held_x = (x.to(device) if inputs else x for x in (self.x, self.held_x))
        labels = self.y.to(device), self.held_y.to(device)
        moved = replace(self, x=x, y=labels[0], held_x=held_x, held_y=labels[1])
        vars(moved)["counts"] = self.counts.to(device)  # counting there would wait for the device
        return moved


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs, and one or more labellings whose weights sum to 1 (mixup returns two).

    `index` holds the inputs' positions in the device's data; None if they are mixtures.
    """

    x: Tensor
    targets: tuple[tuple[Tensor, float], ...]
    index: Tensor | None = None

    def split(self, size: int) -> list[Batch]:
        """Return the batch in parts of at most this size, in order."""
        spans = [slice(i, i + size) for i in range(0, len(self.x), size)]
        return [
            Batch(
                self.x[span],
                tuple((y[span], share) for y, share in self.targets),
                None if self.index is None else self.index[span],
            )
            for span in spans
        ]
