"""The model that a federation agrees on before training: its network, inputs and labels."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fededge._internal.plain_text import LINE

__all__ = ["MAX_NAME", "TAU", "Kind", "ModelSpec"]

Kind = Literal["image", "text"]
MAX_NAME = 200
"""Longest label, in characters."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=LINE)]

MAX_CHANNELS = 64
TAU = "[0-9.e-]{1,12}"
"""Pattern of a temperature in `cosine:TAU`."""


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A network of the zoo with its input shape and its labels.

    `shape` describes one input: channels, height and width of an image (uint8 pixels, normalised
    by `mean` and `std`), or the number of tokens of a text (int64 below `vocabulary`, without
    mean and std). The inputs are images if `vocabulary` is 0, else texts.
    """

    name: Name
    labels: Annotated[tuple[Name, ...], Meta(min_length=2, max_length=100_000)]
    shape: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=8192)], ...], Meta(min_length=1, max_length=3)
    ]
    mean: Annotated[tuple[float, ...], Meta(max_length=MAX_CHANNELS)]
    std: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(max_length=MAX_CHANNELS)]
    # `\Z`, because `$` also matches before a trailing newline.
    head: Annotated[str, Meta(pattern=rf"^(linear|bias-free|cosine(:{TAU})?)\Z")] = "linear"
    vocabulary: Annotated[int, Meta(ge=0, le=10_000_000)] = 0

    def __post_init__(self) -> None:
        """Refuse a shape that does not match the kind of input (msgspec expects ValueError)."""
        if self.vocabulary == 1:
            raise ValueError("a vocabulary needs at least 2 tokens: padding and a word")
        if self.kind == "text" and (len(self.shape) != 1 or self.mean or self.std):
            raise ValueError(
                "a network for texts (it has a vocabulary) needs a shape of one number, its "
                f"tokens, and no mean or std; got shape {list(self.shape)}"
            )
        if self.kind == "image" and (len(self.shape) != 3 or self.shape[0] > MAX_CHANNELS):
            raise ValueError(
                "a network for images (it has no vocabulary) needs a shape of channels (at most "
                f"{MAX_CHANNELS}), height and width; got {list(self.shape)}"
            )

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> Kind:
        return "text" if self.vocabulary else "image"
