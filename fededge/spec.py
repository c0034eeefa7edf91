"""What a federation agrees on before any training: which network, for which inputs and labels."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["ModelSpec"]

Name = Annotated[str, Meta(min_length=1, max_length=100)]


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A network of the zoo, the images it takes (uint8, channels first) and the labels it gives."""

    name: Name
    labels: Annotated[tuple[Name, ...], Meta(min_length=2, max_length=100_000)]
    shape: tuple[
        Annotated[int, Meta(ge=1, le=64)],
        Annotated[int, Meta(ge=1, le=8192)],
        Annotated[int, Meta(ge=1, le=8192)],
    ]
    mean: Annotated[tuple[float, ...], Meta(min_length=1, max_length=64)]
    std: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(min_length=1, max_length=64)]

    @property
    def classes(self) -> int:
        return len(self.labels)
