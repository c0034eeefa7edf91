"""Conversion of an app's images (files, PIL images, arrays, or lists of them) to a model's pixels.

Images are preprocessed as in training: upright, grey or RGB, scaled to cover the model's size and
cropped around the centre.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fededge.errors import ConfigError, DataError
from fededge.inputs import scaling
from fededge.inputs.images import FORMATS, check_header, fitted, pillow, planes, upright

__all__ = ["Shape", "prepare_images"]

Shape = tuple[int, int, int]

CHANNELS = (1, 3, 4)
# ITU-R 601 in 16 bits, as in Pillow, so that an array and its image file give the same grey.
RED, GREEN, BLUE, HALF = 19595, 38470, 7471, 1 << 15


def prepare_images(inputs: Any, shape: Shape, resize: bool) -> tuple[np.ndarray, bool]:
    """Return the pixels uint8 [N, C, H, W], and True if `inputs` was one input, not a batch.

    Args:
        inputs: an image file's path or bytes, a PIL image, an array [H, W], [H, W, C], [C, H, W],
            [N, H, W, C] or [N, C, H, W], or a list of single ones.
        shape: the model's channels, height and width.
        resize: scale images of another size; else they are refused.
    """
    if isinstance(inputs, list | tuple):
        if not inputs:
            return np.empty((0, *shape), np.uint8), False
        return np.concatenate([_single(item, shape, resize) for item in inputs]), False
    if isinstance(inputs, np.ndarray) and inputs.ndim == 4:
        return _from_array(inputs, shape, resize), False
    return _single(inputs, shape, resize), True


def _single(item: Any, shape: Shape, resize: bool) -> np.ndarray:
    """One input as [1, C, H, W]."""
    if isinstance(item, np.ndarray):
        if item.ndim not in (2, 3):
            raise DataError(
                f"one image has 2 or 3 dimensions (height, width and maybe channels), this array "
                f"has shape {item.shape}"
            )
        return _from_array(item, shape, resize)
    if isinstance(item, str | os.PathLike):
        return _from_file(Path(item), str(Path(item)), shape, resize)
    if isinstance(item, bytes | bytearray):
        return _from_file(io.BytesIO(item), "the bytes given", shape, resize)
    pil = sys.modules.get("PIL.Image")  # lazy: an app with a PIL image has imported it already
    if pil is not None and isinstance(item, pil.Image):
        return _from_image(item, "the image given", shape, resize)
    raise DataError(
        "predict takes an image file's path or bytes, a PIL image, a numpy array of uint8, or a "
        f"list of these; this is {type(item).__module__}.{type(item).__qualname__}"
    )


def _from_array(array: np.ndarray, shape: Shape, resize: bool) -> np.ndarray:
    if array.dtype != np.uint8:
        raise DataError(
            f"pixels are uint8 from 0 to 255, this array is {array.dtype}; the model normalises "
            "them itself, so pass them unchanged"
        )
    if 0 in array.shape[-3:]:
        raise DataError(f"an array of shape {array.shape} has no pixels")
    if array.ndim == 2:
        array = array[None]
    elif not _channels_first(array.shape[-3:], shape):
        array = np.moveaxis(array, -1, -3)
    batch = array if array.ndim == 4 else array[None]
    return np.ascontiguousarray(_sized(_coloured(batch, shape[0]), shape, resize))


def _channels_first(size: tuple[int, ...], shape: Shape) -> bool:
    """Return True for [C, H, W], False for [H, W, C]: by the model's shape, else by the sizes."""
    channels, height, width = shape
    if size == shape or size == (height, width, channels):
        return size == shape
    first, last = (count in (*CHANNELS, channels) for count in (size[0], size[-1]))
    if first == last:
        why = "both the first and the last" if first else "neither the first nor the last"
        raise DataError(
            f"an image of shape {size} has no clear channel axis: {why} could be (1, 3 or 4); "
            "pass [height, width, channels], or a batch with four axes"
        )
    return first


def _coloured(batch: np.ndarray, wanted: int) -> np.ndarray:
    """The images [N, C, H, W] in the model's channels, converted between grey and RGB."""
    channels = batch.shape[1]
    if channels == wanted:
        return batch
    if channels not in CHANNELS or wanted not in (1, 3):
        raise DataError(f"the model takes {wanted} channels, and these images have {channels}")
    if channels == 4:  # the fourth is transparency
        return _coloured(batch[:, :3], wanted)
    if wanted == 3:
        return np.repeat(batch, 3, axis=1)
    red, green, blue = (batch[:, i].astype(np.uint32) for i in range(3))
    grey = (RED * red + GREEN * green + BLUE * blue + HALF) >> 16
    return grey.astype(np.uint8)[:, None]


def _sized(batch: np.ndarray, shape: Shape, resize: bool) -> np.ndarray:
    if batch.shape[2:] == shape[1:]:
        return batch
    _check_resize((batch.shape[3], batch.shape[2]), shape, resize)
    try:
        pil = pillow()
    except ImportError:  # slower fallback with the same pixels
        return scaling.fit(batch, *shape[1:])
    resized = np.empty((len(batch), *shape), np.uint8)
    for row, image in zip(resized, batch, strict=True):
        pixels = image[0] if shape[0] == 1 else image.transpose(1, 2, 0)
        one = pil.Image.fromarray(np.ascontiguousarray(pixels))
        row[:] = planes(fitted(one, (shape[2], shape[1])))
    return resized


def _check_resize(size: tuple[int, int], shape: Shape, resize: bool) -> None:
    if not resize or shape[0] not in (1, 3):
        why = "resize=False" if not resize else f"only 1 or 3 channels can be, not {shape[0]}"
        raise DataError(
            f"an image of {size[0]}x{size[1]} pixels is not scaled ({why}); the model takes "
            f"{shape[2]}x{shape[1]}"
        )


def _from_file(source: Path | io.BytesIO, name: str, shape: Shape, resize: bool) -> np.ndarray:
    pil = _pillow()
    with _decoding(pil, name), pil.Image.open(source, formats=FORMATS) as image:
        return _from_image(image, name, shape, resize)


def _from_image(image: Any, name: str, shape: Shape, resize: bool) -> np.ndarray:
    """A PIL image as [1, C, H, W]; an image that is too large is refused before it is decoded."""
    if shape[0] not in (1, 3):
        raise DataError(
            f"{name}: images have 1 channel (grey) or 3 (RGB), and the model takes {shape[0]}; "
            "pass an array"
        )
    check_header(image, name)
    with _decoding(_pillow(), name):
        image = upright(image, shape[0])
    size = shape[2], shape[1]
    if image.size != size:
        _check_resize(image.size, shape, resize)
    return np.ascontiguousarray(planes(fitted(image, size)))[None]


@contextlib.contextmanager
def _decoding(pil: Any, name: str) -> Iterator[None]:
    """Convert errors of decoding an image to DataError."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{name}: there is no such file") from error
    except IsADirectoryError as error:
        raise DataError(f"{name}: this is a folder; pass the image files in it") from error
    except PermissionError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror})") from error
    except (pil.Image.DecompressionBombError, pil.Image.DecompressionBombWarning) as error:
        raise DataError(f"{name}: the image is too large; scale it down") from error
    except Exception as error:  # decoders raise many types on malformed bytes
        kinds = ", ".join(FORMATS)
        raise DataError(f"{name}: not a readable image (known: {kinds})") from error


def _pillow() -> Any:
    try:
        return pillow()
    except ImportError as error:
        raise ConfigError(
            f"image files and PIL images need Pillow, which cannot be imported ({error}); "
            "pip install pillow"
        ) from error
