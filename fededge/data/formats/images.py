"""Image files: one, a list of them, or a folder with a sub-folder for each class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fededge.data.raw import Arrays, Raw, Request, Shape, check_bytes, numbering, reading
from fededge.errors import DataError
from fededge.inputs.images import (
    FORMATS,
    GREY,
    SUFFIXES,
    check_header,
    fitted,
    pillow,
    planes,
    upright,
)

__all__ = ["folders", "image_files", "read_folder", "read_images"]

MOST_FILE_BYTES = 256 * 2**20


def read_folder(request: Request) -> Raw:
    """Read `root/<class>/<image>`, or `root/train/…` and `root/test/…` if there is nothing else."""
    folder = request.needed("folder", "the folder with one sub-folder for each class")
    parts = {path.name: path for path in folders(folder)}
    if set(parts) != {"train", "test"}:
        parts = {"train": folder}
    names = sorted({path.name for part in parts.values() for path in folders(part)})
    if not names:
        raise DataError(f"{folder}: it must hold one sub-folder of images for each class")
    numbers = numbering(names, request.labels, folder)
    arrays = {name: _read_classes(part, request, numbers) for name, part in parts.items()}
    return Raw(folder, request.labels or tuple(names), arrays["train"], arrays.get("test"))


def read_images(
    paths: Sequence[Path], shape: Shape | None, most_bytes: int | None = None
) -> np.ndarray:
    """Read pixels [N, C, H, W], fitted to the shape; without one, all images must be alike."""
    if shape is not None:
        check_bytes(len(paths) * math.prod(shape), paths[0].parent, most=most_bytes)
    if shape is not None and shape[0] not in (1, 3):
        raise DataError(f"image files have 1 channel (grey) or 3 (RGB), but {shape[0]} are wanted")
    first = _read_image(paths[0], shape)
    check_bytes(len(paths) * first.size, paths[0].parent, most=most_bytes)
    x = np.empty((len(paths), *first.shape), np.uint8)
    for row, path in zip(x, paths, strict=True):
        image = _read_image(path, shape)
        if image.shape != first.shape:
            raise DataError(
                f"{path}: its shape {image.shape} differs from {first.shape} of {paths[0].name}; "
                "set model.shape to have all images fitted to it"
            )
        row[:] = image
    return x


def folders(folder: Path) -> list[Path]:
    with reading(folder):
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _read_classes(folder: Path, request: Request, numbers: dict[str, int]) -> Arrays:
    paths: list[Path] = []
    y: list[int] = []
    for name, number in numbers.items():
        found = image_files(folder / name)
        paths += found
        y += [number] * len(found)
    if not paths:
        raise DataError(f"{folder}: none of its class folders holds an image ({_suffixes()})")
    x = read_images(paths, request.shape, request.most_bytes)
    return Arrays(x, np.asarray(y, np.int64))


def image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():  # a class of the training part may be absent from the test part
        return []
    nested = folders(folder)
    if nested:
        raise DataError(f"{nested[0]}: a class folder holds images only, no further folders")
    with reading(folder):
        return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)


def _suffixes() -> str:
    return ", ".join(SUFFIXES)


def _read_image(path: Path, shape: Shape | None) -> np.ndarray:
    pil = _pillow()
    with reading(path):
        if path.stat().st_size > MOST_FILE_BYTES:
            raise DataError(f"{path}: larger than the {MOST_FILE_BYTES:,} bytes that are allowed")
    try:
        with pil.Image.open(path, formats=FORMATS) as image:
            check_header(image, path)
            if shape is None:
                return planes(upright(image, 1 if image.mode in GREY else 3))
            return planes(fitted(upright(image, shape[0]), (shape[2], shape[1])))
    except (
        pil.Image.DecompressionBombError,
        pil.Image.DecompressionBombWarning,
    ) as error:
        raise DataError(f"{path}: the image is too large; scale it down") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: not a readable image; replace or remove it") from error


def _pillow() -> Any:
    try:
        return pillow()
    except ImportError as error:
        raise DataError(
            f"reading image files needs Pillow, which cannot be imported ({error}); install "
            "fededge[vision]"
        ) from error
