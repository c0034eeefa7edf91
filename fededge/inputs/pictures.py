"""Pictures as Pillow reads them, made into pixels: the same for training and for apps."""

from __future__ import annotations

from typing import Any

import numpy as np

from fededge.errors import DataError
from fededge.inputs.scaling import covered

__all__ = ["FORMATS", "GREY", "SUFFIXES", "check_header", "fitted", "pillow", "planes", "upright"]

# Formats whose decoders are simple and quiet; TIFF and others stay out on purpose.
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
MOST_PIXELS_A_SIDE = 8192
GREY = ("1", "L", "LA")
COLOUR = ("P", "RGB", "RGBA", "CMYK", "YCbCr")


def pillow() -> Any:
    """The package PIL with what is used of it.

    Raises:
        ImportError: it is not installed.
    """
    import PIL.Image
    import PIL.ImageOps

    return PIL


def check_header(image: Any, name: object) -> None:
    """Refuse what is too large or cannot be brought to 8 bits without loss, before decoding it."""
    if min(image.size) < 1:
        raise DataError(f"{name}: {image.size[0]}x{image.size[1]} pixels are none")
    if max(image.size) > MOST_PIXELS_A_SIDE:
        raise DataError(
            f"{name}: {image.size[0]}x{image.size[1]} pixels are more than the "
            f"{MOST_PIXELS_A_SIDE} a side that are allowed; scale it down"
        )
    if image.mode not in (*GREY, *COLOUR):
        raise DataError(f"{name}: its pixels are of kind {image.mode}; save it with 8 bits each")


def upright(image: Any, channels: int) -> Any:
    """A picture turned as its EXIF says, in grey or RGB; how opaque it is does not count."""
    turned = pillow().ImageOps.exif_transpose(image)
    if turned.mode == "P" and isinstance(turned.info.get("transparency"), bytes):
        turned = turned.convert("RGBA")  # without this step Pillow warns, of nothing that matters
    return turned.convert("L" if channels == 1 else "RGB")


def fitted(image: Any, size: tuple[int, int]) -> Any:
    """The centre of a picture with the proportions of a size, scaled to it.

    One direction after the other: Pillow's releases differ in which one they take first, and a
    fleet whose boxes have different ones must see the same pixels.
    """
    bilinear = pillow().Image.Resampling.BILINEAR
    wide, high = covered(image.size, size)
    left, top = (image.width - wide) / 2, (image.height - high) / 2
    rows = image.resize((size[0], image.height), bilinear, (left, 0, left + wide, image.height))
    return rows.resize(size, bilinear, (0, top, size[0], top + high))


def planes(image: Any) -> np.ndarray:
    """The pixels of a grey or RGB picture: [C, H, W]."""
    array = np.asarray(image, np.uint8)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
