"""What a federation agrees on before any training: which network, for which inputs and labels."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fededge._internal.plain_text import LINE

__all__ = ["MOST_NAME", "TAU", "Kind", "ModelSpec"]

Kind = Literal["image", "text"]
MOST_NAME = 200
"""Characters of a label."""

Name = Annotated[str, Meta(min_length=1, max_length=MOST_NAME, pattern=LINE)]

MOST_CHANNELS = 64
TAU = "[0-9.e-]{1,12}"


class ModelSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A network of the zoo, the inputs that it takes, and the labels that it gives.

    `shape` is that of one input: channels, height and width of an image (uint8 pixels, normalised
    by `mean` and `std`), or the number of tokens of a text (int64 below `vocabulary`, neither
    mean nor std). A `vocabulary` of 0 says that the inputs are images.
    """

    name: Name
    labels: Annotated[tuple[Name, ...], Meta(min_length=2, max_length=100_000)]
    shape: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=8192)], ...], Meta(min_length=1, max_length=3)
    ]
    mean: Annotated[tuple[float, ...], Meta(max_length=MOST_CHANNELS)]
    std: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(max_length=MOST_CHANNELS)]
    # `\Z`, not `$`: that one also matches before a newline at the end.
    head: Annotated[str, Meta(pattern=rf"^(linear|bias-free|cosine(:{TAU})?)\Z")] = "linear"
    vocabulary: Annotated[int, Meta(ge=0, le=10_000_000)] = 0

    def __post_init__(self) -> None:
        """Refuse a shape of another kind of input: a ValueError, which msgspec expects here."""
        if self.vocabulary == 1:
            raise ValueError("a vocabulary needs at least 2 tokens: padding and a word")
        if self.kind == "text" and (len(self.shape) != 1 or self.mean or self.std):
            raise ValueError(
                "a network for texts (it has a vocabulary) needs a shape of one number, its "
                f"tokens, and no mean or std; got shape {list(self.shape)}"
            )
        if self.kind == "image" and (len(self.shape) != 3 or self.shape[0] > MOST_CHANNELS):
            raise ValueError(
                "a network for images (it has no vocabulary) needs a shape of channels (at most "
                f"{MOST_CHANNELS}), height and width; got {list(self.shape)}"
            )

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> Kind:
        return "text" if self.vocabulary else "image"
