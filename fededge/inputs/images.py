"""Images that Pillow has read, converted to pixels; the same for training and for apps."""

from __future__ import annotations

from typing import Any

import numpy as np

from fededge.errors import DataError
from fededge.inputs.scaling import covered

__all__ = ["FORMATS", "GREY", "SUFFIXES", "check_header", "fitted", "pillow", "planes", "upright"]

# Formats with simple decoders; TIFF and others are left out on purpose.
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
MAX_SIDE = 8192
GREY = ("1", "L", "LA")
COLOUR = ("P", "RGB", "RGBA", "CMYK", "YCbCr")


def pillow() -> Any:
    """Import the package PIL with the modules used here.

    Raises:
        ImportError: Pillow is not installed.
    """
    import PIL.Image
    import PIL.ImageOps

    return PIL


def check_header(image: Any, name: object) -> None:
    """Refuse an image that is too large or not 8 bits per channel, before decoding it."""
    width, height = image.size
    if min(image.size) < 1:
        raise DataError(f"{name}: the image is empty ({width} x {height} pixels)")
    if max(image.size) > MAX_SIDE:
        raise DataError(
            f"{name}: the image has {width} x {height} pixels, the limit is {MAX_SIDE} a side; "
            "scale it down"
        )
    if image.mode not in (*GREY, *COLOUR):
        raise DataError(
            f"{name}: Pillow's mode {image.mode} is not supported; save it with 8 bits per channel"
        )


def upright(image: Any, channels: int) -> Any:
    """The image rotated by its EXIF orientation, in grey or RGB; transparency is ignored."""
    turned = pillow().ImageOps.exif_transpose(image)
    if turned.mode == "P" and isinstance(turned.info.get("transparency"), bytes):
        turned = turned.convert("RGBA")  # avoids a harmless warning of Pillow's
    return turned.convert("L" if channels == 1 else "RGB")


def fitted(image: Any, size: tuple[int, int]) -> Any:
    """The centre of an image with the proportions of `size`, scaled to it.

    The two directions are separate calls, because Pillow's releases differ in which one comes
    first, and boxes with different releases must get the same pixels.
    """
    bilinear = pillow().Image.Resampling.BILINEAR
    wide, high = covered(image.size, size)
    left, top = (image.width - wide) / 2, (image.height - high) / 2
    rows = image.resize((size[0], image.height), bilinear, (left, 0, left + wide, image.height))
    return rows.resize(size, bilinear, (0, top, size[0], top + high))


def planes(image: Any) -> np.ndarray:
    """The pixels of a grey or RGB image: [C, H, W]."""
    array = np.asarray(image, np.uint8)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
